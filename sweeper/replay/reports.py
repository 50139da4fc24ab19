"""Reports of a rehearsal and of a check, as plain frozen values.

They are made where TensorFlow and the study are, and read where neither is.

Plain frozen values: a trial process makes them, a pipe carries them as JSON, and the command line
prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
    """Estimate of what the whole study will take, from the steps that were measured.

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
    """Report of one check.

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
        """Return whether there is no error among the findings."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def lacks_packages(self) -> bool:
        """Return whether every error is a package that is not installed, so that nothing was judged."""
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


PARTS = ("x", "y", "sample_weight")
"""Names of the parts of a batch."""


@dataclass(frozen=True, slots=True)
class Event:
    """The state after something happened.

    Attributes:
        what: ``"start"``, ``"step"``, ``"callback"`` or ``"elsewhere"`` (between two others: a
            validation, the loop's own work).
        owner: The callback's position, for ``"callback"``.
        hook: The hook that it ran.
        step: Steps finished.
        state: A digest a variable.
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
    """One thing that the user wrote, as a judge in another process knows it.

    Attributes:
        name: What to call it.
        line: Where it is defined; None for a library's.
        hooks: Of a callback: where each of its own hooks is defined.
        measured: Of a callback: the attributes, keys and metrics that it gives times measured by a clock.
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
        """Return what each callback measures by a clock, by the callback's name."""
        return {callback.name: callback.measured for callback in self.callbacks}

    @property
    def users(self) -> tuple[str, ...]:
        """Return the callbacks that the user wrote, each with its line."""
        return tuple(dict.fromkeys(f"callback {c}" for c in self.callbacks if c.hooks))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of an epoch and a validation, and how much of them is rehearsed.

    Attributes:
        steps: Steps of an epoch of the study's; None where only its end tells.
        validation_batches: Batches of a validation of the study's; 0 without one, or where only its
            end tells.
        epoch_steps: Steps of a rehearsed epoch; None for the study's own.
        validation_steps: Batches of a rehearsed validation; None for the study's own.
    """

    steps: int | None
    validation_batches: int
    epoch_steps: int | None
    validation_steps: int | None


@dataclass(frozen=True, slots=True)
class Timed:
    """Durations of steps and a validation, run as a trial runs them.

    Attributes:
        steps: That were run.
        seconds: That they took.
        validation_batches: Batches of the validation; None where that is not known.
        validation_seconds: That it took.
        memory: Bytes that the process held at most.
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
        described: The source, for a person.
        shuffle: Whether `Data` asks for an order of its own in each epoch.
        whole: A digest of each array, where the data are arrays.
        epochs: The first and the second.
        validation: Its batches.
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
        steps: In training steps.
        work: In all but the start-up.
    """

    startup: float = 0.0
    steps: float = 0.0
    work: float = 0.0


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """Report of one rehearsal; what it did not come to is None.

    Attributes:
        complete: Whether it came to its end.
        code: What the user wrote.
        findings: What this process could judge alone.
        seconds: Where the time went.
        steps: Training steps that were run.
        built: Digests of the variables that the model factory gave, of the last trial that was built.
        weights: Initial variables of the trial, all of them: some are made with the first batch.
        owned: How many objects of the trial training can change.
        validation: A digest of the samples of a validation, whatever their order; None without one, or
            where it is too long to be read.
        lengths: Of the rehearsed epochs.
        trace: What was seen while training.
        end: The step at which training was left.
        epochs: Epochs that were over by then.
        metrics: What they reported.
        epoch_steps: Steps of a rehearsed epoch.
        follow_seconds: Of the watched training, without the watching.
        listening: Whether a callback listens to single batches.
        validations: How many a whole trial has.
        checkpoint: The directory of the last state.
        timed: What a step takes.
        data: Digests of the data of the first trial that was built.
        later_data: Those of trial 1, where it was built after trial 0.
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
    """Return whether two trials were seen to validate on different samples, in whatever order."""
    if first is None or second is None or first.validation is None or second.validation is None:
        return False
    return first.validation != second.validation


def validation_finding(first: RehearsalReport, second: RehearsalReport) -> Finding | None:
    """Return the warning that two trials with equal parameters are validated on different samples.

    Args:
        first: Of the process that built trial 0.
        second: Of the process that built trial 1 with the parameters of trial 0.
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
