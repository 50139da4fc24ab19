"""Record of one difference between a trial and its replay, with its severity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sweeper.replay.reports import StudyAuthors

Level = Literal["error", "note"]
LEVELS: tuple[Level, ...] = ("error", "note")
"""Severities, the highest first."""

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

    @property
    def names(self) -> frozenset[str]:
        """Return the attributes and keys on the path to the value."""
        return frozenset(_QUOTED.findall(self.name))

    def excused(self) -> Difference:
        """Return the same difference as a note, which breaks no promise."""
        return replace(self, level="note")

    def is_excused_by(self, others: Iterable[Difference]) -> bool:
        """Return whether one of ``others`` has the same path and covers all differing elements."""
        return self.excusable and any(
            other.path == self.path
            and (
                other.elements is None
                or (self.elements is not None and self.elements <= other.elements)
            )
            for other in others
        )


def excuse(found: Iterable[Difference], anyway: Iterable[Difference]) -> list[Difference]:
    """Return ``found``, in which differences between two uninterrupted runs become notes.

    Args:
        found: Differences between a trial and its replay.
        anyway: Differences between two equal runs.
    """
    by_path: dict[str, list[Difference]] = {}
    for each in anyway:
        by_path.setdefault(each.path, []).append(each)
    return ranked(
        each.excused() if each.is_excused_by(by_path.get(each.path, ())) else each for each in found
    )


def judge(
    found: Iterable[Difference],
    anyway: Iterable[Difference],
    authors: StudyAuthors | None,
) -> list[Difference]:
    """Return ``found``, the most severe first, with excused differences as notes.

    `sweeper check`, `sweeper verify` and audits use it.

    Args:
        found: Differences between a trial and its replay.
        anyway: Differences between two equal runs, which excuse the same paths.
        authors: The user's code, with the values that are computed from a clock; None if unknown.
    """
    left = excuse(found, anyway)
    return left if authors is None else excuse_measured(left, authors.measured)


def excuse_measured(
    found: Iterable[Difference], measured: Mapping[str, frozenset[str]]
) -> list[Difference]:
    """Return ``found``, in which values that the user's code computes from a clock become notes.

    A date or a rounded time can be equal in two uninterrupted runs and differ in a third. Only the
    value's own path is excused, not other state of the same callback.

    Args:
        found: Differences between a trial and its replay.
        measured: By callback, the attributes, keys and metrics with measured times.
    """
    return ranked(
        each.excused() if each.excusable and _is_measured(each, measured) else each
        for each in found
    )


def _is_measured(difference: Difference, measured: Mapping[str, frozenset[str]]) -> bool:
    if difference.component in ("history", "position"):
        # A callback adds it to the logs, and nothing but its name tells which one.
        metrics = {part for name in difference.names for part in name.split("/")}
        return any(metrics & names for names in measured.values())
    return any(
        difference.name.startswith(f"callback {owner}") and difference.names & names
        for owner, names in measured.items()
    )


def ranked(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences, the most severe first; otherwise in their order."""
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def errors(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences that break the promise of exactness."""
    return [each for each in found if each.level == "error"]
