"""Report of a check, and what a replay's process reports of the user's code, as plain frozen values.

A pipe carries them as JSON, and the command line prints them without importing TensorFlow or the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.records.findings import LEVELS, Finding, Level, Line
from sweeper.records.printing import JsonRecord, PrintedRecord, counted, json_fields


@dataclass(frozen=True, slots=True)
class Estimate(JsonRecord):
    """Estimate of the study's time and disk, from the replays of its first trial.

    Attributes:
        steps_per_epoch: Steps of an epoch; None if unknown, and then no time is estimated.
        epoch_seconds: Seconds of a whole epoch with its validation; None if unknown.
        startup_seconds: Seconds to start a trial: its process, building, tracing.
        trial_seconds: Seconds of a trial with all epochs.
        study_seconds: Seconds of all trials, ``workers`` at a time.
        workers: Parallel trials.
        checkpoint_bytes: Size of one checkpoint.
        checkpoints_kept: Maximum number of kept checkpoints of a trial.
        disk_bytes: Maximum size of all checkpoints of all trials.
    """

    steps_per_epoch: int | None
    epoch_seconds: float | None
    startup_seconds: float
    trial_seconds: float | None
    study_seconds: float | None
    workers: int
    checkpoint_bytes: int
    checkpoints_kept: int
    disk_bytes: int

    def __str__(self) -> str:
        parts = [f"at most {self.disk_bytes / 1e6:.1f} MB of checkpoints"]
        if self.trial_seconds is not None and self.study_seconds is not None:
            workers = counted(self.workers, "worker")
            parts.append(f"{self.trial_seconds:.0f} s for a trial")
            parts.append(f"{self.study_seconds:.0f} s for the study with {workers}")
        return f"about {', '.join(reversed(parts))}"


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(PrintedRecord):
    """Report of one check.

    Attributes:
        findings: Errors first.
        held: The promises that hold, a sentence each.
        metrics: Names of the metrics of an epoch; empty if unknown.
        estimate: The estimate; None if no epoch could be run.
        seconds: ``"total"``: duration of the check.
        steps: Training steps that were run.
        removed: What the check's trials made outside of their directories and was removed.
    """

    study: str
    findings: tuple[Finding, ...]
    held: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    estimate: Estimate | None = None
    seconds: Mapping[str, float] | None = None
    steps: int = 0
    removed: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def lacks_packages(self) -> bool:
        """Return whether every error is a missing package, so that nothing was checked."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return bool(errors) and all(finding.subject == "installation" for finding in errors)

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    @property
    def verdict(self) -> str:
        """Return the verdict in some words."""
        if self.lacks_packages:
            return "cannot run: a package is missing"
        return "holds" if self.holds else "a promise does not hold"

    def __str__(self) -> str:
        counts = [counted(self.count(level), level) for level in LEVELS if self.count(level)]
        lines = [f"{self.study}: {self.verdict}, {', '.join(counts) or 'nothing found'}"]
        lines += map(str, self.findings)
        lines += [f"holds: {promise}" for promise in self.held]
        if self.metrics:
            lines.append(f"metrics: {', '.join(self.metrics)}")
        if self.estimate is not None:
            lines.append(f"estimate: {self.estimate}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        fields = json_fields(self, "study", "holds", "findings", "held", "metrics")
        return {**fields, **json_fields(self, "estimate", "seconds", "steps", "removed")}


@dataclass(frozen=True, slots=True)
class UserObject:
    """A factory or a callback, described for another process.

    Attributes:
        name: Its name in messages.
        line: Where it is defined; None for a library's.
        measured: For a callback: the attributes, keys and metrics with measured times.
    """

    name: str
    line: Line | None = None
    measured: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name} ({self.line})"


@dataclass(frozen=True, slots=True)
class UserObjects:
    """Factories that the user wrote, and the callbacks in their order, a library's too."""

    model: UserObject
    data: UserObject
    callbacks: tuple[UserObject, ...] = ()

    @property
    def users(self) -> tuple[str, ...]:
        """Return the callbacks that the user wrote, each with its line."""
        return tuple(dict.fromkeys(f"callback {c}" for c in self.callbacks if c.line is not None))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Length of an epoch of the study, beside that of a shortened trial.

    Attributes:
        steps: Steps of an epoch; None if unknown.
        times: How many times as long it is, by its steps or by its validation.
    """

    steps: int | None
    times: float
