"""How benchmarks here are told: medians of alternating runs, as ratios, in one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One comparison. ``bound`` is what the ratio should be at most (or at least), or None."""

    what: str
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str
    bound: float | None = None
    at_most: bool = True

    @property
    def value(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def holds(self) -> bool:
        if self.bound is None:
            return True
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def line(self) -> str:
        wanted = ""
        if self.bound is not None:
            sign = "<=" if self.at_most else ">="
            wanted = f"; wanted {sign} {self.bound:g}: {'yes' if self.holds else 'NO'}"
        pairs = [o / t for o, t in zip(self.ours, self.theirs, strict=True)]
        return (
            f"{self.what}\n"
            f"    {statistics.median(self.ours):,.3g} against "
            f"{statistics.median(self.theirs):,.3g} {self.unit}; ratio {self.value:.2f} "
            f"(pairs {min(pairs):.2f} to {max(pairs):.2f}){wanted}"
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
