"""Findings for the user: what a check, a verification or a run has seen, its severity, and where."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Literal, TypeVar

from sweeper.records.printing import json_fields

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of `sweeper check`, of `sweeper verify` or about a file of a run, for the user.

    Attributes:
        level: ``"error"``: a promise does not hold, or no trial could run. ``"warning"``: a promise
            holds with a restriction. ``"note"``: information.
        subject: What it is about. In a check: ``"independence"``, ``"files"``, ``"seeds"``, ``"data"``,
            ``"capture"``, ``"resume"``, ``"determinism"``, ``"objective"``, ``"build"``,
            ``"settings"``, ``"installation"`` (a package is missing, which breaks no promise). In a
            verification: the value that differs, in the user's names, ``"digest"``, ``"parameter"``,
            ``"replay"``, ``"checkpoint"``, ``"file"``, ``"files"``, ``"promise"`` or ``"environment"``. In a
            run: the absolute path of the file.
        message: What was seen, what was expected, what to do.
        line: The line of the user's code concerned, if known.
        epoch: The epoch concerned, from 0, if there is one.
        step: The step of the checkpoint concerned, if there is one.
    """

    level: Level
    subject: str
    message: str
    line: Line | None = None
    epoch: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        location = "" if self.line is None else f" {self.line}"
        return f"{self.level} [{self.subject}]{location}: {' '.join(self.message.split())}"

    def to_json(self) -> dict[str, Any]:
        location = {"file": None, "line": None} if self.line is None else asdict(self.line)
        fields = json_fields(self, "level", "subject", "message")
        return {**fields, **location, **json_fields(self, "epoch", "step")}


_level: Callable[[Any], Level] = attrgetter("level")
_F = TypeVar("_F")


def ranked(findings: Iterable[_F]) -> list[_F]:
    """Return findings or differences: errors, then warnings, then notes, otherwise in their order."""
    return sorted(findings, key=lambda finding: LEVELS.index(_level(finding)))
