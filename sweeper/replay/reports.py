"""Reports of a rehearsal and of a check, as plain frozen values.

A trial process makes them, a pipe carries them as JSON, and the command line prints them without
importing TensorFlow or the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sweeper.records.printing import json_fields

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
    """A finding for the user.

    Attributes:
        level: ``"error"``: a promise does not hold, or no trial could run. ``"warning"``: a promise
            holds with a restriction. ``"note"``: information.
        check: Name of the check: ``"independence"``, ``"seeds"``, ``"data"``, ``"validation"``,
            ``"capture"``, ``"resume"``, ``"determinism"``, ``"objective"``, ``"build"``,
            ``"settings"``, ``"installation"`` (a package is missing, which breaks no promise).
        message: What was seen, what was expected, what to do.
        line: The line concerned, if known.
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
    """Estimate of the study's time, memory and disk, from measured steps.

    Attributes:
        steps_per_epoch: Steps of an epoch; None if unknown, and then no time is estimated.
        seconds_per_step: Seconds of a training step, in blocks as in a trial.
        validation_seconds: Seconds of one complete validation; 0 without validation.
        startup_seconds: Seconds to start a trial: its process, building, tracing.
        trial_seconds: Seconds of a trial with all epochs.
        study_seconds: Seconds of all trials, ``workers`` at a time.
        workers: Parallel trials.
        trial_bytes: Peak memory of a trial's process during the check.
        memory_bytes: The same for ``workers`` of them.
        checkpoint_bytes: Size of one checkpoint.
        checkpoints_kept: Maximum number of kept checkpoints of a trial.
        disk_bytes: Maximum size of all checkpoints of all trials.
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
    """Report of one check.

    Attributes:
        study: Its name.
        findings: Errors first.
        held: The promises that hold, a sentence each.
        metrics: Names of the metrics of an epoch; empty if unknown.
        estimate: The estimate; None if no step could be run.
        seconds: ``"total"``: the whole check. ``"startup"``: of that, until processes could run
            and models were built and traced, added up over them. ``"steps"``: in the training steps
            themselves; ``"work"``: all but the start-up, both added up over the processes.
        steps: Training steps that were run.
        inline: What makes trials of this study dependent with ``isolation="inline"``, where they
            share a process; empty for nothing. It is not a finding.
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
        """Return whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def lacks_packages(self) -> bool:
        """Return whether every error is a missing package, so that nothing was checked."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return bool(errors) and all(finding.check == "installation" for finding in errors)

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "study", "holds", "findings", "held", "metrics"),
            "estimate": None if self.estimate is None else asdict(self.estimate),
            **json_fields(self, "seconds", "steps", "inline"),
        }


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return errors, then warnings, then notes, without duplicates, in the order of discovery."""
    once = list(dict.fromkeys(findings))
    return tuple(sorted(once, key=lambda finding: _LEVELS.index(finding.level)))


PARTS = ("x", "y", "sample_weight")
"""Names of the parts of a batch."""


@dataclass(frozen=True, slots=True)
class Event:
    """The state after an event of a training.

    Attributes:
        what: ``"start"``, ``"step"``, ``"callback"`` or ``"elsewhere"`` (between two others: a
            validation, the loop's own work).
        owner: The callback's position, for ``"callback"``.
        hook: The callback's hook.
        step: Finished steps.
        state: A digest of each variable.
    """

    what: str
    owner: int | None
    hook: str
    step: int
    state: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Events of one training.

    Attributes:
        variables: The component and path of each variable, as the events have them.
    """

    variables: tuple[str, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Authored:
    """An object of the user's code, described for another process.

    Attributes:
        name: Its name in messages.
        line: Where it is defined; None for a library's.
        hooks: For a callback: the line of each of its own hooks.
        measured: For a callback: the attributes, keys and metrics with measured times.
    """

    name: str
    line: Line | None = None
    hooks: dict[str, Line] = field(default_factory=dict)
    measured: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.name} ({self.line})"


@dataclass(frozen=True, slots=True)
class StudyAuthors:
    """Code that the user wrote.

    Attributes:
        model: The model factory.
        data: The data factory.
        step: The user's own layers, and the training step.
        callbacks: In their order.
    """

    model: Authored
    data: Authored
    step: Authored
    callbacks: tuple[Authored, ...]

    @property
    def measured(self) -> Mapping[str, frozenset[str]]:
        """Return the names of each callback's measured times, by the callback's name."""
        return {callback.name: callback.measured for callback in self.callbacks}

    @property
    def users(self) -> tuple[str, ...]:
        """Return the callbacks that the user wrote, each with its line."""
        return tuple(dict.fromkeys(f"callback {c}" for c in self.callbacks if c.hooks))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of an epoch and a validation, in the study and in the rehearsal.

    Attributes:
        steps: Steps of an epoch of the study; None if unknown.
        validation_batches: Batches of a validation of the study; 0 without one or if unknown.
        epoch_steps: Steps of a rehearsed epoch; None for the study's own.
        validation_steps: Batches of a rehearsed validation; None for the study's own.
    """

    steps: int | None
    validation_batches: int
    epoch_steps: int | None
    validation_steps: int | None


@dataclass(frozen=True, slots=True)
class Timed:
    """Durations of steps and a validation, run as in a trial.

    Attributes:
        steps: Number of steps.
        seconds: Seconds of these steps.
        validation_batches: Batches of the validation; None if unknown.
        validation_seconds: Seconds of the validation.
        memory: Peak memory of the process in bytes.
    """

    steps: int
    seconds: float
    validation_batches: int | None
    validation_seconds: float
    memory: int


Batches = tuple[tuple[str, ...], ...]
"""A digest of each part of each batch."""

Weights = tuple[tuple[str, str, bool], ...]
"""Path and digest of each variable, and whether it has more than one value."""


@dataclass(frozen=True, slots=True)
class DataDigests:
    """The first batches of two epochs and of a validation.

    Attributes:
        kind: The class of the source.
        described: Description of the source.
        shuffle: Whether `Data` requests a shuffle in each epoch.
        whole: A digest of each array, if the data are arrays.
        epochs: The first and the second epoch.
        validation: Batches of the validation.
        whole_validation: As ``whole``.
    """

    kind: str
    described: str
    shuffle: bool
    whole: tuple[str, ...] | None
    epochs: tuple[Batches, Batches]
    validation: Batches
    whole_validation: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a rehearsal.

    Attributes:
        startup: Building and tracing.
        steps: Seconds in training steps.
        work: Seconds without the start-up.
    """

    startup: float = 0.0
    steps: float = 0.0
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """Report of one rehearsal; parts that it did not reach are None.

    Attributes:
        complete: Whether it reached its end.
        code: The user's code.
        findings: Findings of this process alone.
        seconds: Seconds of its parts.
        steps: Training steps that were run.
        built: Digests of the variables from the model factory, of the last trial that was built.
        weights: All initial variables of the trial, including those that the first batch makes.
        owned: Number of the trial's objects that training can change.
        validation: A digest of the validation samples, independent of their order; None without one
            or if it is too long.
        lengths: Lengths of the rehearsed epochs.
        trace: Events of the training.
        end: The step at which the rehearsal ended.
        epochs: Epochs finished by then.
        metrics: Names of the reported metrics.
        epoch_steps: Steps of a rehearsed epoch.
        follow_seconds: Seconds of the recorded training, without the recording.
        listening: Whether a callback has hooks for single batches.
        validations: Number of validations of a complete trial.
        checkpoint: The directory of the last state.
        timed: Duration of steps.
        data: Digests of the data of the first trial that was built.
        later_data: Digests of the data of trial 1, if it was built after trial 0.
    """

    complete: bool
    code: StudyAuthors
    findings: tuple[Finding, ...]
    seconds: Spent
    steps: int
    built: tuple[str, ...] | None = None
    weights: Weights | None = None
    owned: int | None = None
    validation: str | None = None
    lengths: Lengths | None = None
    trace: Trace | None = None
    end: int = 0
    epochs: int = 0
    metrics: tuple[str, ...] = ()
    epoch_steps: int = 0
    follow_seconds: float = 0.0
    listening: bool = False
    validations: int = 0
    checkpoint: str | None = None
    timed: Timed | None = None
    data: DataDigests | None = None
    later_data: DataDigests | None = None


def validation_differs(first: RehearsalReport | None, second: RehearsalReport | None) -> bool:
    """Return whether two trials have different validation samples, in any order."""
    if first is None or second is None or first.validation is None or second.validation is None:
        return False
    return first.validation != second.validation


def validation_finding(first: RehearsalReport, second: RehearsalReport) -> Finding | None:
    """Return the warning that two trials with equal parameters are validated on different samples.

    Args:
        first: Report of the process that built trial 0.
        second: Report of the process that built trial 1 with the parameters of trial 0.
    """
    if not validation_differs(first, second):
        return None
    data = first.code.data
    return Finding(
        "warning",
        "validation",
        "trials are validated on different samples, so their values cannot be compared: "
        f"{data.name} returned different validation data for two trials with equal parameters; "
        "draw the split from a seed that does not depend on the trial, such as random_state=0",
        data.line,
    )
