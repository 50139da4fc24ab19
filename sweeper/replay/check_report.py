"""What a check finds: findings with their lines, what holds, and what the study will cost.

Plain frozen values: a trial process makes them, a pipe carries them as JSON, and the command line
prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
_LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the user should know.

    Attributes:
        level: ``"error"``: a promise does not hold, or no trial could run. ``"warning"``: it holds
            less than one may think. ``"note"``: good to know.
        check: What was being checked: ``"independence"``, ``"seeds"``, ``"data"``, ``"validation"``,
            ``"capture"``, ``"resume"``, ``"determinism"``, ``"objective"``, ``"build"``,
            ``"settings"``, ``"installation"`` (a package is missing, which breaks no promise).
        message: What was seen, what was expected, what to do.
        line: The line to look at, where there is one.
    """

    level: Level
    check: str
    message: str
    line: Line | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "check": self.check,
            "message": self.message,
            "file": None if self.line is None else self.line.file,
            "line": None if self.line is None else self.line.line,
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the whole study will take, from the steps that were measured.

    Attributes:
        steps_per_epoch: None where only an epoch's end tells; then no time is known either.
        seconds_per_step: Of training, in the blocks that a trial runs.
        validation_seconds: Of one whole validation; 0 without.
        startup_seconds: Of one trial: building, tracing, its process.
        trial_seconds: Of one trial that runs all its epochs.
        study_seconds: Of all trials, ``workers`` at a time.
        workers: Trials side by side.
        trial_bytes: Most memory that a trial's process held while it was checked.
        memory_bytes: The same for ``workers`` of them.
        checkpoint_bytes: Of one checkpoint.
        checkpoints_kept: Of one trial, under the study's rules; at most.
        disk_bytes: Of all checkpoints of all trials, at most.
    """

    steps_per_epoch: int | None
    seconds_per_step: float
    validation_seconds: float
    startup_seconds: float
    trial_seconds: float | None
    study_seconds: float | None
    workers: int
    trial_bytes: int
    memory_bytes: int
    checkpoint_bytes: int
    checkpoints_kept: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All that one check has to say.

    Attributes:
        study: Its name.
        findings: Errors first.
        held: What was checked and holds, a sentence each.
        metrics: What an epoch reports; empty where that could not be learnt.
        estimate: None where no step could be run.
        seconds: ``"total"``: the whole check. ``"startup"``: of that, until processes could run
            and models were built and traced, added up over them. ``"steps"``: in the training steps
            themselves; ``"work"``: all but the start-up, both added up over the processes.
        steps: Training steps that were run.
        inline: What keeps trials of this study from being independent with ``isolation="inline"``,
            where they share a process; empty for nothing. No finding, since nothing comes of it
            otherwise.
    """

    study: str
    findings: tuple[Finding, ...]
    held: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    estimate: Estimate | None = None
    seconds: Mapping[str, float] | None = None
    steps: int = 0
    inline: str = ""

    @property
    def holds(self) -> bool:
        """Whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def lacks_packages(self) -> bool:
        """Whether every error is a package that is not installed, so that nothing was judged."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return bool(errors) and all(finding.check == "installation" for finding in errors)

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "holds": self.holds,
            "findings": [finding.to_json() for finding in self.findings],
            "held": list(self.held),
            "metrics": list(self.metrics),
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "seconds": None if self.seconds is None else dict(self.seconds),
            "steps": self.steps,
            "inline": self.inline,
        }


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return errors first, then warnings, then notes; each once, in the order in which they were found."""
    once = list(dict.fromkeys(findings))
    return tuple(sorted(once, key=lambda finding: _LEVELS.index(finding.level)))
