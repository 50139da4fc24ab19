"""Record of one difference between a trial and its replay, with its severity."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "note"]
LEVELS: tuple[Level, ...] = ("error", "note")
"""Severities, the highest first."""

_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two checkpoints of a trial at one step.

    Attributes:
        component: Component of the training's state, such as ``"optimizer"``.
        path: Exact path of the value; equal in every comparison of the same trial.
        name: The value's name in the user's terms.
        how: Both values, or the largest deviation.
        level: Severity; a property of the component, until the difference is excused.
        excusable: Whether the path may be excused because it differs between undisturbed runs too.
            Weights, the optimizer, metrics, generators and the objective never are.
        elements: Indices of the elements that differ, of a small array; None for a whole value.
        advice: What the difference means, beyond that the values differ.
    """

    component: str
    path: str
    name: str
    how: str
    level: Level
    excusable: bool = True
    elements: frozenset[int] | None = None
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}{f' ({self.advice})' if self.advice else ''}"

    @property
    def names(self) -> frozenset[str]:
        """The attributes and keys that lead to the value."""
        return frozenset(_QUOTED.findall(self.name))

    def excused(self) -> Difference:
        """Return the same difference as one that breaks no promise."""
        return replace(self, level="note")

    def is_excused_by(self, others: Iterable[Difference]) -> bool:
        """Return whether one of ``others`` differs at the same path, in every element that this does."""
        return self.excusable and any(
            other.path == self.path
            and (
                other.elements is None
                or (self.elements is not None and self.elements <= other.elements)
            )
            for other in others
        )


def excuse(found: Iterable[Difference], anyway: Iterable[Difference]) -> list[Difference]:
    """Return ``found``, with a note of what differs between two undisturbed runs too.

    Args:
        found: Differences between a trial and its replay.
        anyway: Differences between two runs that were treated alike.
    """
    by_path: dict[str, list[Difference]] = {}
    for each in anyway:
        by_path.setdefault(each.path, []).append(each)
    return ranked(
        each.excused() if each.is_excused_by(by_path.get(each.path, ())) else each for each in found
    )


def ranked(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences, the most severe first; otherwise in their order."""
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def errors(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences that break the promise of exactness."""
    return [each for each in found if each.level == "error"]
