"""How benchmarks here are told: medians of alternating runs, as ratios, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One comparison. ``bound`` is what the ratio should be at most (or at least)."""

    what: str
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str
    bound: float
    at_most: bool

    @property
    def value(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def holds(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def line(self) -> str:
        sign = "<=" if self.at_most else ">="
        pairs = [o / t for o, t in zip(self.ours, self.theirs, strict=True)]
        return (
            f"{self.what}\n"
            f"    {statistics.median(self.ours):,.3g} against "
            f"{statistics.median(self.theirs):,.3g} {self.unit}; ratio {self.value:.2f} "
            f"(pairs {min(pairs):.2f} to {max(pairs):.2f}); wanted {sign} {self.bound:g}: "
            f"{'yes' if self.holds else 'NO'}"
        )


def alternate(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Measure both in turn, so that a machine that slows down slows both."""
    a, b = [], []
    for _ in range(rounds):
        a.append(ours())
        b.append(theirs())
    return a, b
