"""Record of one difference between a trial and its replay, and what excuses it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sweeper.replay.reports import Level, StudyAuthors, ranked

_QUOTED = re.compile(r"(?<!\w)'([^']*)'")


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two checkpoints of a trial at one step.

    Attributes:
        component: Component of the training's state, such as ``"optimizer"``.
        path: Exact path of the value, equal in every comparison of the same trial.
        name: The user's name for the value.
        how: Both values, or the largest deviation.
        level: ``"error"`` until the difference is excused.
        excusable: Whether the path is excused if it also differs between uninterrupted runs.
            Weights, the optimizer, metrics, generators and the objective are never excused.
        elements: Indices of the differing elements of a small array; None for a whole value.
        advice: Meaning of the difference, and advice.
    """

    component: str
    path: str
    name: str
    how: str
    level: Level = "error"
    excusable: bool = True
    elements: frozenset[int] | None = None
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}{f' ({self.advice})' if self.advice else ''}"

    def is_within(self, elements: frozenset[int] | None) -> bool:
        """Return whether the differing elements are among ``elements``; None is the whole value."""
        return elements is None or (self.elements is not None and self.elements <= elements)


def judge(
    found: Iterable[Difference], anyway: Iterable[Difference], authors: StudyAuthors | None
) -> list[Difference]:
    """Return ``found``, the most severe first, with excused differences as notes.

    A date or a rounded time can be equal in two uninterrupted runs and differ in a third, so values that
    the user's code computes from a clock are excused, too: their own paths, and not other state of the same
    callback.

    Args:
        found: Differences between a trial and its replay.
        anyway: Differences between two equal runs, which excuse the same paths.
        authors: The user's code, with the values that are computed from a clock; None if unknown.
    """
    measured = {} if authors is None else authors.measured
    elements: dict[str, list[frozenset[int] | None]] = {}
    for each in anyway:
        elements.setdefault(each.path, []).append(each.elements)

    def is_excused(each: Difference) -> bool:
        return each.excusable and (
            any(map(each.is_within, elements.get(each.path, ()))) or _is_measured(each, measured)
        )

    return ranked(replace(each, level="note") if is_excused(each) else each for each in found)


def _is_measured(difference: Difference, measured: Mapping[str, frozenset[str]]) -> bool:
    quoted = set(_QUOTED.findall(difference.name))
    if difference.component in ("history", "position"):
        # A callback adds it to the logs, and nothing but its name tells which one.
        metrics = {part for name in quoted for part in name.split("/")}
        return any(metrics & names for names in measured.values())
    return any(
        difference.name.startswith(f"callback {owner}") and quoted & names
        for owner, names in measured.items()
    )


def errors(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences that break the promise of exactness."""
    return [each for each in found if each.level == "error"]
