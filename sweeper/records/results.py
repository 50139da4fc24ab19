"""Results of a study as frozen records, which are read from the database and never written back.

A `StudyStatus` contains counts, and a `TrialRecord` one trial with its attempts, epochs and
checkpoints. Their ``to_json`` returns the objects of the command-line contract.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sweeper.declarations.observing import ForeignObservation
from sweeper.declarations.searching import Direction, Objective, cost_sign
from sweeper.declarations.space import CategoricalChoice, Distribution
from sweeper.errors import UsageError
from sweeper.records.code import CodeGroup
from sweeper.records.configurations import (
    ConfigurationRecord,
    Training,
    TrialState,
    configurations_of,
    identity_of,
    leader_sentence,
)
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import AuditRecord, Exactness, VerificationRecord
from sweeper.records.lengths import LengthRecord, RungRecord
from sweeper.records.model_source import HasModel, ModelSource
from sweeper.records.printing import (
    JsonRecord,
    counted,
    html_text,
    json_fields,
    parameter_shown,
    parameters_shown,
    value_shown,
    values_shown,
)
from sweeper.support.installation import install_command

if TYPE_CHECKING:
    from os import PathLike

    import keras
    import pandas as pd

Params = Mapping[str, CategoricalChoice]
"""A trial's parameters: name to value."""

_NOTHING_AUDITED = Exactness()


@dataclass(frozen=True, slots=True)
class WorkerRecord(JsonRecord):
    """A present or former worker of a study.

    Attributes:
        key: Unique key of the worker.
        host: Host name of the machine.
        pid: Id of the process.
        engine: Engine that placed it: "local", "dask" or "ray".
        slots: Number of parallel trials.
        joined_at: Time at which it joined, by the database's clock.
        lease_until: End of its lease unless it is renewed, by the database's clock.
        left_at: Time at which it left; None while it is present, or if it was lost.
        error: Error because of which it left; None without one.
        live: Whether it is present: it has not left, its lease has not ended, and its process is not
            known to be gone.

    Examples:
        >>> from sweeper.records.results import WorkerRecord
        >>> def where(worker: WorkerRecord) -> str:
        ...     return f"{worker.slots} on {worker.host}"
    """

    key: str
    host: str
    pid: int
    engine: str
    slots: int
    joined_at: datetime
    lease_until: datetime
    left_at: datetime | None
    error: str | None
    live: bool

    def __str__(self) -> str:
        presence = "there" if self.live else "gone"
        error = "" if self.error is None else f": {value_shown(self.error, 200)}"
        where = f"{counted(self.slots, 'slot')} on {self.host}, pid {self.pid}, {self.engine}"
        return f"worker with {where}, {presence}{error}"


@dataclass(frozen=True, slots=True)
class BestTrial(HasModel):
    """The complete trial with the best objective, or the best trial of the leading configuration.

    Attributes:
        number: The trial's number.
        value: Its objective; the mean of the configuration where there is one.
        params: Its parameters, by name.
        configuration: Number of the leading configuration, in a study with repeats; None in others.
        source: Source of its model; None in a record that is not from a study's results.

    Examples:
        >>> best = study.status().best
        >>> sorted(best.params), best.value > 0
        (['learning_rate'], True)
    """

    number: int
    value: float
    params: Params
    source: ModelSource | None = field(default=None, repr=False, compare=False)
    configuration: int | None = None

    @property
    def named(self) -> str:
        """Return what the value is of: ``trial 7``, or ``configuration 2`` for a mean."""
        if self.configuration is None:
            return f"trial {self.number}"
        return f"configuration {self.configuration}"

    def __str__(self) -> str:
        name = "value" if self.configuration is None else "mean"
        return f"{self.named}, {parameters_shown({name: self.value, **self.params})}"

    def to_json(self) -> dict[str, Any]:
        mean = {} if self.configuration is None else {"configuration": self.configuration}
        return {**json_fields(self, "number", "value", "params"), **mean}


@dataclass(frozen=True, slots=True)
class ParetoTrial(HasModel):
    """A complete trial of the Pareto front: no other is better in an objective and worse in none.

    Attributes:
        number: The trial's number.
        values: Its values by objective.
        params: Its parameters, by name.
        source: Source of its model; None in a record that is not from a study's results.

    Examples:
        >>> [trial.values for trial in study.status().pareto]  # empty with one objective
        []
    """

    number: int
    values: Mapping[str, float]
    params: Params
    source: ModelSource | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"trial {self.number}, {values_shown(self.values)}, {parameters_shown(self.params)}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "number", "values", "params")


Ranked = TypeVar("Ranked", bound=Training)


ErrorKind = Literal["mistake", "lasting", "other"]
"""Kind of the error that ended an attempt. "mistake": no trial can succeed before the study is changed;
"lasting": another attempt at the trial would raise it again, because it has the same seed and data."""


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """Progress of one trial that has started.

    Attributes:
        number: The trial's number, from 0.
        state: Its state.
        params: Its parameters, by name.
        value: See `TrialRecord.value`; None before the trial is complete or pruned.
        epoch: Number of finished epochs.
        epochs: Maximum number of epochs; None if unknown.
        metrics: Metrics of the latest finished epoch; empty before the first.
        values: Values by objective, for a complete trial in a study with several; None otherwise.
        attempts: Number of attempts, including a running one.
        error: Last line of the error that ended a failed trial, or interrupted it; None otherwise.
        error_kind: ``"mistake"`` if no trial can succeed before the study is changed, ``"lasting"`` if another
            attempt would raise it again, ``"other"``; None without an error, or after a process's death.
        value_of: See `TrialRecord.value_of`.
        reuses: See `TrialRecord.reuses`.
        proposals: See `TrialRecord.proposals`.
        tags: See `TrialRecord.tags`.
        note: See `TrialRecord.note`.
        hidden: See `TrialRecord.hidden`.

    Examples:
        >>> first, *_ = study.status().trials
        >>> first.number, first.state, first.epoch
        (0, 'complete', 2)
    """

    number: int
    state: TrialState
    params: Params
    value: float | None
    epoch: int
    epochs: int | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] | None = None
    attempts: int = 1
    error: str | None = None
    error_kind: ErrorKind | None = None
    value_of: str | None = None
    reuses: int | None = None
    proposals: int = 0
    tags: tuple[str, ...] = ()
    note: str | None = None
    hidden: bool = False

    @property
    def would_fail_again(self) -> bool:
        """Return whether it failed with an error that another attempt would raise again."""
        return self.error_kind in ("mistake", "lasting")

    @property
    def shows_a_mistake(self) -> bool:
        """Return whether an error of the study interrupted it, which has to be fixed before a resume."""
        return self.state == "interrupted" and self.error_kind == "mistake"

    def __str__(self) -> str:
        of = (
            counted(self.epoch, "epoch")
            if self.epochs is None
            else f"{self.epoch}/{self.epochs} epochs"
        )
        values = {"value": self.value} if self.values is None else self.values
        results = f"{values_shown(values)}, {parameters_shown(self.params)}"
        return f"trial {self.number} {self.state}, {results}, {of}, {counted(self.attempts, 'attempt')}"

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "number", "state", "params", "value", "epoch", "epochs"),
            **({} if self.reuses is None else {"reuses": self.reuses}),
            **({"tags": list(self.tags)} if self.tags else {}),
            **({} if self.note is None else {"note": self.note}),
            **({"hidden": True} if self.hidden else {}),
        }


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """Number of a study's trials in each state.

    A study of several objectives has no best trial, but a Pareto front.

    Attributes:
        study: The study's name.
        target: The exact total of trials, over all runs.
        complete: Number of trials that trained to their end.
        running: Number of trials with a live attempt.
        interrupted: Number of trials that have started, have no live attempt, and will be resumed.
        pruned: Number of trials that the pruner or a rung of the budget ended.
        failed: Number of failed trials.
        waiting: Number of trials that have not started.
        best: The best complete trial; None without one, and with several objectives.
        objectives: The objectives of a study with several, in order; empty otherwise.
        pareto: The trials of the Pareto front, with several objectives.
        exactness: Results of its audits.
        codes: Groups of trials by definition and code, if there are several; ``best`` is then the best
            under the present one.
        objective: The metric by which trials are compared, the first of several.
        direction: Direction of that metric.
        paused: Number of trials that wait at a rung of the budget.
        trials: Every trial that has started, by number; empty if they were not requested.
        configurations: Its configurations under the present code, complete ones by rank; empty in a
            study that trains each once, and if the trials were not requested. ``best`` is then the
            leading configuration's best trial, with the mean as its value.
        confirmed: The configurations that ``sweeper confirm`` has trained again, by rank.
        observations: Results of trainings outside of the study, which its sampler uses. They are no trials.
        seconds_left: Estimated seconds until the total is reached with the present number of parallel
            trials; None if no trial runs, or none has finished an epoch.

    Examples:
        >>> status = study.status()
        >>> status.complete, status.target
        (2, 2)
    """

    study: str
    target: int
    complete: int = 0
    running: int = 0
    interrupted: int = 0
    pruned: int = 0
    failed: int = 0
    waiting: int = 0
    best: BestTrial | None = None
    objectives: tuple[Objective, ...] = ()
    pareto: tuple[ParetoTrial, ...] = ()
    exactness: Exactness = _NOTHING_AUDITED
    codes: tuple[CodeGroup, ...] = ()
    objective: str = "val_loss"
    direction: Direction = "minimize"
    paused: int = 0
    trials: tuple[TrialStatus, ...] = field(default=(), repr=False)
    seconds_left: float | None = field(default=None, compare=False)
    configurations: tuple[ConfigurationRecord, ...] = field(default=(), repr=False)
    confirmed: tuple[ConfigurationRecord, ...] = field(default=(), repr=False)
    observations: tuple[ForeignObservation, ...] = field(default=(), repr=False)

    @property
    def reused(self) -> int:
        """Return the number of finished trials that have the result of another one."""
        return sum(t.reuses is not None and t.state in ("complete", "pruned") for t in self.trials)

    @property
    def finished(self) -> int:
        return self.complete + self.pruned + self.failed

    @property
    def is_over(self) -> bool:
        """Return whether no trial of the total is left to run."""
        return self.finished >= self.target

    def __str__(self) -> str:
        standing = ("complete", "pruned", "failed", "running", "paused", "interrupted", "waiting")
        counts = [f"{count} {state}" for state in standing if (count := getattr(self, state))]
        best = "" if self.best is None else f"; best: {self.best}"
        return f"{self.study}: {self.finished} of {self.target} trials finished ({', '.join(counts) or 'none'}){best}"

    def to_json(self) -> dict[str, Any]:
        several = [{"name": o.name, "direction": o.direction} for o in self.objectives]
        return {
            **json_fields(self, "study", "objective", "direction", "target", "complete", "running"),
            **json_fields(self, "interrupted", "paused", "pruned", "failed", "waiting", "best"),
            **({"reused": self.reused} if self.reused else {}),
            **(json_fields(self, "observations") if self.observations else {}),
            "audited": self.exactness.to_json(),
            **(json_fields(self, "codes") if self.codes else {}),
            **({"objectives": several, **json_fields(self, "pareto")} if several else {}),
            **json_fields(self, "trials", "configurations", "confirmed"),
        }


def ranked(trials: Iterable[Ranked], status: StudyStatus) -> list[Ranked]:
    """Return a study's trials, the best first: complete ones by value, then the others by number.

    With several objectives, the trials of the Pareto front come first, then the others by number. If
    trials ran under several codes, each group is sorted separately, and the present one comes first.
    """
    if len(status.codes) > 1:
        by_number = {trial.number: trial for trial in trials}
        groups = sorted(status.codes, key=lambda group: not group.current)
        return [
            trial
            for group in groups
            for trial in ranked(
                [by_number[number] for number in group.trials if number in by_number],
                replace(status, codes=()),
            )
        ]
    if status.objectives:
        leading = {trial.number for trial in status.pareto}
        return sorted(trials, key=lambda trial: (trial.number not in leading, trial.number))
    sign = cost_sign(status.direction)

    def rank(trial: Ranked) -> tuple[bool, float, int]:
        if trial.state != "complete" or trial.value is None or not math.isfinite(trial.value):
            return (True, 0.0, trial.number)
        return (False, sign * trial.value, trial.number)

    return sorted(trials, key=rank)


def leading(status: StudyStatus, count: int) -> list[TrialStatus]:
    """Return the ``count`` best trials under the present definition and code, the best first."""
    others = {n for group in status.codes if not group.current for n in group.trials}
    candidates = [
        t
        for t in status.trials
        if t.state == "complete" and t.number not in others and t.reuses is None and not t.hidden
    ]
    return ranked(candidates, replace(status, codes=()))[:count]


def leader_of(configurations: Sequence[ConfigurationRecord]) -> BestTrial | None:
    """Return the best trial of the leading configuration, with the mean as its value; None for none."""
    if not configurations:
        return None
    leader = configurations[0]
    if leader.state != "complete" or leader.best_trial is None or leader.mean is None:
        return None
    return BestTrial(leader.best_trial, leader.mean, leader.params, configuration=leader.number)


def none_complete(study: str, target: int, errors: Iterable[str | None]) -> str:
    """Return a message that no trial is complete, with the first of the errors of its failed trials."""
    failed = list(errors)
    text = f"study {study!r} has no complete trial yet"
    if failed:
        first = (failed[0] or "no error was kept").strip().rpartition("\n")[2]
        text += f": {len(failed)} of {target} failed, the first with: {first}"
    return text


def is_or_are(count: int | None) -> str:
    return "is" if count == 1 else "are"


Outcome = Literal[
    "complete", "interrupted", "paused", "crashed", "lost", "pruned", "failed", "reused"
]
"""End of an attempt. "lost": its worker is gone; "crashed": its process died; "paused": it reached a
rung of the study's budget; "reused": its trial takes the result of an earlier one."""

_LONGEST_ERROR = 200
_TEXT_ROWS = 12
_CELL_ROWS = 30
_CELL_WIDTH = 200


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch.

    Its text is one line, in which epochs are counted from 1, as in tables and logs.

    Attributes:
        epoch: Its number, from 0, as in Keras and in ``show --json``.
        metrics: All metrics in its logs, by name; those of validation start with ``val_``.

    Examples:
        >>> sorted(study.results().best.epochs[0].metrics)
        ['accuracy', 'loss', 'val_accuracy', 'val_loss']
    """

    epoch: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}: {values_shown(self.metrics)}"

    def to_json(self) -> dict[str, Any]:
        # Tables have columns for the numbers of the trial and the epoch, which no metric may replace.
        named = {
            n if n not in ("epoch", "trial") else f"metrics_{n}": v for n, v in self.metrics.items()
        }
        return {"epoch": self.epoch, **named}


@dataclass(frozen=True, slots=True)
class CheckpointRecord(JsonRecord):
    """One committed checkpoint.

    Attributes:
        step: Finished optimizer steps of the whole trial.
        epoch: Finished epochs.
        digest: XXH3-128 (hex) of every model and optimizer variable in order.
        bytes: Total size of its files.
        path: Its directory, or its prefix in an object store.

    Examples:
        >>> [checkpoint.step for checkpoint in study.results().best.checkpoints]
        [10, 20]
    """

    step: int
    epoch: int
    digest: str
    bytes: int
    path: str

    def __str__(self) -> str:
        epochs = counted(self.epoch, "epoch")
        return f"checkpoint at step {self.step} after {epochs}, {self.bytes} bytes: {self.path}"


@dataclass(frozen=True, slots=True)
class AttemptRecord(JsonRecord):
    """One attempt at a trial, by one process.

    Attributes:
        number: Its number, from 1.
        outcome: How it ended: "complete", "interrupted", "paused" (at a rung of the study's budget),
            "crashed" (its process died), "lost" (its worker is gone), "pruned" or "failed"; None
            while it runs.
        start_step: The step from which it resumed, or 0; None before training.
        end_step: The last stored step; None without one.
        host: Host name of the machine.
        pid: Id of the trial's process; None before its start.
        started_at: Time of the claim, by the database's clock.
        ended_at: Time of its end, by the database's clock; that of a lost one is when its loss was noticed; None
            while it runs.
        error: The error that ended it; None without one.

    Examples:
        >>> [(attempt.number, attempt.outcome) for attempt in study.results().best.attempts]
        [(1, 'complete')]
    """

    number: int
    outcome: Outcome | None
    start_step: int | None
    end_step: int | None
    host: str
    pid: int | None
    started_at: datetime
    ended_at: datetime | None
    error: str | None = None

    def __str__(self) -> str:
        steps = f"steps {value_shown(self.start_step)} to {value_shown(self.end_step)}"
        where = f"{steps}, {self.host}, pid {value_shown(self.pid)}"
        error = "" if self.error is None else f": {value_shown(self.error, _LONGEST_ERROR)}"
        return f"attempt {self.number} {self.outcome or 'running'}, {where}{error}"


@dataclass(frozen=True, slots=True, repr=False)
class TrialRecord(HasModel):
    """One trial with all details.

    Attributes:
        study: The study's name.
        number: Its number in the study, from 0.
        state: "waiting", "running", "interrupted" (started, no live attempt, will be resumed), "paused"
            (at a rung of the study's budget), "complete", "pruned" or "failed".
        params: Its parameters, by name.
        epochs: All finished epochs, in order.
        attempts: All attempts, in order.
        checkpoints: Its kept checkpoints.
        value: The objective of the weights that the study's ``at`` selects, the first of several;
            None before the trial is complete or pruned.
        value_of: What the value is of: ``"epoch 8"`` (from 1), or ``"after training"`` if no epoch had
            the weights that the model has at its end. None for the last epoch.
        seed: The trial's seed, drawn from the study's seed and the trial's number.
        digest: Digest of the final training state; None before the trial is complete or pruned.
        values: Values by objective, for a complete trial in a study with several; None otherwise.
        verification: Result of its latest `sweeper verify`; None without one.
        audits: Its audited intervals.
        code: Short form of its definition and code (`CodeGroup.code`).
        output_only: Kinds of objects that `Trial.output_only` exempted from its checkpoints.
        warm_start: Initial weights of its latest start: ``path``, ``kind``, ``digest``, ``matched``
            and ``mismatches``; None without a file of weights.
        ignore_checkpoints_through: Number of the last attempt that ran under another definition, and whose
            checkpoints are not used; 0 for none.
        evaluations: Evaluations of its checkpoints on held-out data (`sweeper evaluate`).
        rungs: The rungs of the study's budget that it has reached, with their decisions.
        source: Source of its model; None in a record that is not from a study's results.
        distributions: Distributions of its parameters.
        length: Maximum number of its epochs; None if unknown.
        earlier_lengths: Its results at earlier lengths, the shortest first.
        files: Files outside of its own directory that its attempts read and wrote (``"read"`` and
            ``"written"``), each with ``path`` and ``digest``, and what was noticed about them
            (``"notices"``).
        reuses: Number of the earlier trial with the same parameters whose result it has, because it was
            not trained (``duplicates="reuse"``); None for a trial that was trained.
        proposals: Number of earlier proposals of its parameters, if it was trained with the seeds that
            follow theirs (``duplicates="train"`` with repeats).
        tags: Its tags (`sweeper tag`), in the order in which they were added.
        note: Text about it (`sweeper note`); None without one.
        hidden: Whether it is not listed and never the best trial (`sweeper hide`). The sampler still uses its
            result.
        mean_of: Number of the configuration of which ``value`` is the mean, in `StudyResults.best` of a
            study with repeats; None for a value of this trial.

    Examples:
        >>> trial = study.results().trials[0]
        >>> trial.state, sorted(trial.params), len(trial.epochs)
        ('complete', ['learning_rate'], 2)
    """

    study: str
    number: int
    state: TrialState
    params: Params
    value: float | None
    seed: int
    digest: str | None
    epochs: tuple[EpochRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    verification: VerificationRecord | None = None
    values: Mapping[str, float] | None = None
    audits: tuple[AuditRecord, ...] = ()
    code: str | None = None
    value_of: str | None = None
    ignore_checkpoints_through: int = 0
    output_only: tuple[str, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    warm_start: Mapping[str, Any] | None = None
    rungs: tuple[RungRecord, ...] = ()
    source: ModelSource | None = field(default=None, repr=False, compare=False)
    distributions: Mapping[str, Distribution] = field(default_factory=dict, repr=False)
    length: int | None = None
    earlier_lengths: tuple[LengthRecord, ...] = ()
    files: Mapping[str, Sequence[Any]] = field(
        default_factory=lambda: {"read": (), "written": (), "notices": ()}
    )
    reuses: int | None = None
    proposals: int = 0
    tags: tuple[str, ...] = ()
    note: str | None = None
    hidden: bool = False
    mean_of: int | None = field(default=None, compare=False)

    @property
    def lengths(self) -> tuple[LengthRecord, ...]:
        """Return its results at all lengths at which it has ended, the shortest first."""
        if self.state not in ("complete", "pruned") or self.length is None:
            return self.earlier_lengths
        ended = self.attempts[-1].ended_at if self.attempts else None
        present = LengthRecord(
            epochs=self.length,
            trained=len(self.epochs),
            state="complete" if self.state == "complete" else "pruned",
            value=self.value,
            digest=self.digest,
            at=ended,
            values=self.values,
        )
        return (*self.earlier_lengths, present)

    @property
    def error(self) -> str | None:
        """Return the latest error of a failed trial; None otherwise."""
        if self.state != "failed":
            return None
        return next((a.error for a in reversed(self.attempts) if a.error), None)

    def __str__(self) -> str:
        name = "value" if self.mean_of is None else "mean"
        of = "" if self.mean_of is None else f" of configuration {self.mean_of}"
        values = {name: self.value} if self.values is None else self.values
        parts = [f"trial {self.number} of {self.study} {self.state}", values_shown(values) + of]
        if self.params:
            parts.append(parameters_shown(self.params))
        work = f"{counted(len(self.epochs), 'epoch')}, {counted(len(self.attempts), 'attempt')}"
        ending = "" if self.error is None else f": {value_shown(self.error, _LONGEST_ERROR)}"
        if self.reuses is not None:
            ending = f", the result of trial {self.reuses}"
        return f"{', '.join(parts)}, {work}{ending}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "study", "number", "state", "params", "value"),
            **({} if self.values is None else {"values": dict(self.values)}),
            **({} if self.value_of is None else {"value_of": self.value_of}),
            **({} if self.reuses is None else {"reuses": self.reuses}),
            **({"tags": list(self.tags)} if self.tags else {}),
            **({} if self.note is None else {"note": self.note}),
            **({"hidden": True} if self.hidden else {}),
            **json_fields(self, "seed", "digest", "epochs", "attempts", "checkpoints"),
            **json_fields(self, "verification"),
            "audits": [a.to_json() for a in self.audits if a.identical is not None],
            "files": {use: list(files) for use, files in self.files.items()},
            **json_fields(self, "code", "output_only", "evaluations", "rungs", "lengths"),
            **({} if self.warm_start is None else {"warm_start": dict(self.warm_start)}),
        }


class TopTrials(tuple[TrialRecord, ...]):
    """The best trials of a study, from `StudyResults.top`, the best first."""

    __slots__ = ()

    def ensemble(self, path: str | PathLike[str] | None = None) -> keras.Model:
        """Return one model whose predictions are the mean of those of the trials' models.

        Args:
            path: Also write it there, as a ``.keras`` file; None to write none.

        Raises:
            UsageError: The models have different inputs or outputs, or are not built.
            SweeperError: See `TrialRecord.load_model`.
        """
        return self[0].model_source().ensemble([trial.number for trial in self], path)


@dataclass(frozen=True, repr=False)
class StudyResults:
    """Result of `Study.run`: every trial of the study, in the order of their numbers.

    Iteration yields its trials, ``len`` is their number, and ``results[3]`` is the trial with number 3.
    Its text, also in a notebook, is a table of the trials.

    Attributes:
        status: Numbers of trials by state, and the best trial.
        trials: All trials with their details.

    Examples:
        >>> results = study.results()
        >>> results.best.number in [trial.number for trial in results]
        True
        >>> len(results), results[1].number
        (2, 1)
        >>> model = results.best.load_model()
    """

    status: StudyStatus
    trials: tuple[TrialRecord, ...] = field(default=(), repr=False)

    def __iter__(self) -> Iterator[TrialRecord]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: int) -> TrialRecord:
        """Return the trial with this number.

        Args:
            number: The trial's number, from 0.

        Raises:
            LookupError: There is no such trial.
        """
        for trial in self.trials:
            if trial.number == number:
                return trial
        numbers = ", ".join(str(trial.number) for trial in self.trials) or "none"
        raise LookupError(f"study {self.status.study!r} has no trial {number!r}; it has {numbers}")

    def __str__(self) -> str:
        width = shutil.get_terminal_size().columns
        return _text_of(self.status, self.trials, width, _TEXT_ROWS)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        # A notebook's cell is wider than a terminal, and scrolls.
        return html_text(_text_of(self.status, self.trials, _CELL_WIDTH, _CELL_ROWS))

    @property
    def best(self) -> TrialRecord:
        """Return the complete trial with the best objective.

        With repeats, it is the best trial of the leading configuration, with the configuration's mean as
        its value.

        Raises:
            LookupError: No trial is complete yet, or there are several objectives.
        """
        if self.status.objectives:
            names = ", ".join(repr(objective.name) for objective in self.status.objectives)
            raise LookupError(
                f"study {self.status.study!r} has the objectives {names}, so there is no single "
                "best trial; see results.pareto"
            )
        if self.status.best is None:
            errors = [trial.error for trial in self.trials if trial.state == "failed"]
            none = none_complete(self.status.study, self.status.target, errors)
            raise LookupError(f"{none}. No trial is the best one")
        best = self.status.best
        trial = next(t for t in self.trials if t.number == best.number)
        return replace(trial, value=best.value, mean_of=best.configuration)

    def top(self, count: int) -> TopTrials:
        """Return the best trials of the leading configurations, one of each, the best first.

        Args:
            count: How many, at least 1.

        Raises:
            UsageError: There are several objectives, or fewer complete configurations.

        Examples:
            >>> [trial.number for trial in study.results().top(1)] == [study.results().best.number]
            True
        """
        complete = [c for c in self.configurations if c.state == "complete"]
        if self.status.objectives or not 1 <= count <= len(complete):
            available = counted(len(complete), "complete configuration")
            raise UsageError(
                f"top({count!r}): study {self.status.study!r} has {available} of one objective"
            )
        return TopTrials(
            self[configuration.best_trial]
            for configuration in complete[:count]
            if configuration.best_trial is not None
        )

    @property
    def configurations(self) -> tuple[ConfigurationRecord, ...]:
        """Return the configurations under the present code, complete ones by rank, then by number.

        In a study without repeats, each trial is the only training of its configuration.
        """
        status = self.status
        if status.configurations or status.objectives:
            return status.configurations
        trials = self.trials
        if len(status.codes) > 1:
            present = {n for group in status.codes if group.current for n in group.trials}
            trials = tuple(trial for trial in trials if trial.number in present)
        return configurations_of(trials, status.direction, {})

    @property
    def confirmed(self) -> tuple[ConfigurationRecord, ...]:
        """Return the configurations that `Study.confirm` has trained again, by rank."""
        return self.status.confirmed

    @property
    def pareto(self) -> tuple[TrialRecord, ...]:
        """Return the complete trials of the Pareto front; with one objective, only the best trial."""
        leading = {trial.number for trial in self.status.pareto}
        if not self.status.objectives and self.status.best is not None:
            leading = {self.status.best.number}
        return tuple(t for t in self.trials if t.number in leading)

    @property
    def evaluations(self) -> tuple[EvaluationRecord, ...]:
        """Return all evaluations of checkpoints on held-out data, by trial; `Study.evaluate` ranks them."""
        return tuple(record for trial in self.trials for record in trial.evaluations)

    def with_models(self, source: ModelSource) -> StudyResults:
        """Return the same results with a source of models.

        Args:
            source: Opens the study and its files when a model is loaded.
        """
        status = self.status
        best = None if status.best is None else replace(status.best, source=source)
        pareto = tuple(replace(trial, source=source) for trial in status.pareto)
        return StudyResults(
            replace(status, best=best, pareto=pareto),
            tuple(replace(trial, source=source) for trial in self.trials),
        )

    def to_dataframe(
        self,
        of: Literal["trials", "epochs", "attempts"] = "trials",
        *,
        by: Literal["trial", "configuration"] = "trial",
    ) -> pd.DataFrame:
        """Return a table with one row for each trial, epoch, attempt or configuration.

        Args:
            of: ``"trials"``, by default: trial, state, value, each parameter, numbers of epochs and
                attempts, seconds of its attempts, the steps at which they resumed, seed, digest and
                error. ``"epochs"``: trial, epoch (from 0) and every metric. ``"attempts"``: trial,
                number, outcome, steps, host and times.
            by: ``"configuration"`` for one row for each configuration instead: configuration, state, mean, std,
                bounds of the interval, number of repeats, trials, verdict and each parameter.

        Raises:
            UsageError: ``of`` or ``by`` is none of these, or pandas is not installed; the message contains the
                command that installs it.
        """
        rows_of = {"trials": trial_rows, "epochs": epoch_rows, "attempts": attempt_rows}
        if of not in rows_of:
            raise UsageError(f"to_dataframe({of!r}); it is one of {', '.join(map(repr, rows_of))}")
        if by not in ("trial", "configuration") or (by == "configuration" and of != "trials"):
            raise UsageError(
                f"to_dataframe({of!r}, by={by!r}); by is 'trial', or 'configuration' without of"
            )
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise UsageError(
                f"to_dataframe() needs the package {error.name!r}, which is not installed: "
                f"{install_command('plots')}; or read results.trials"
            ) from error

        if by == "configuration":
            return pd.DataFrame(configuration_rows(self.configurations))
        return pd.DataFrame(rows_of[of](self.trials))


def trial_rows(trials: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each trial, with a summary of its attempts."""
    return [
        {
            "trial": t.number,
            "state": t.state,
            "value": t.value,
            **({} if t.value_of is None else {"value_of": t.value_of}),
            **({"hidden": t.hidden} if any(other.hidden for other in trials) else {}),
            **{f"values_{name}": value for name, value in (t.values or {}).items()},
            **{f"params_{name}": value for name, value in t.params.items()},
            "epochs": len(t.epochs),
            "attempts": len(t.attempts),
            "seconds": sum(
                (a.ended_at - a.started_at).total_seconds() for a in t.attempts if a.ended_at
            ),
            "resumed_at_steps": [a.start_step for a in t.attempts if a.start_step],
            "began_at": t.attempts[0].started_at if t.attempts else None,
            "ended_at": t.attempts[-1].ended_at if t.attempts else None,
            "seed": t.seed,
            "digest": t.digest,
            "error": t.error,
        }
        for t in trials
    ]


def epoch_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    return [{"trial": t.number, **epoch.to_json()} for t in trials for epoch in t.epochs]


def attempt_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    return [
        {
            "trial": t.number,
            **attempt.to_json(),
            "started_at": attempt.started_at,
            "ended_at": attempt.ended_at,
        }
        for t in trials
        for attempt in t.attempts
    ]


def configuration_rows(configurations: Iterable[ConfigurationRecord]) -> list[dict[str, Any]]:
    return [
        {
            "configuration": c.number,
            **json_fields(c, "state", "mean", "std", "trials"),
            **dict(zip(("low", "high"), c.interval or (None, None), strict=True)),
            "repeats": len(c.values),
            "verdict": None if c.comparison is None else c.comparison.verdict,
            **{f"params_{name}": value for name, value in c.params.items()},
        }
        for c in configurations
    ]


def _text_of(status: StudyStatus, trials: Sequence[TrialRecord], width: int, most: int) -> str:
    """Return a headline and a table of the best trials, whose columns fit into ``width``."""
    lines = [f"{status.study}: {progress_text(status)}"]
    visible = [trial for trial in trials if not trial.hidden]
    leaders = ranked(visible, status)[:most]
    if leaders:
        columns, optional = _columns(status, leaders)
        names = list(columns)
        for name in optional:
            if sum(len(cells[0]) + 2 for cells in columns.values()) - 2 > width:
                del columns[name]
        lines += ["  ".join(cells) for cells in zip(*columns.values(), strict=True)]
        hidden = ", ".join(name for name in names if name not in columns)
        if hidden:
            lines.append(f"too wide to show: {hidden}; results.to_dataframe() has them")
    remaining = len(visible) - len(leaders)
    if remaining:
        lines.append(f"and {remaining} more: results.trials, or results.to_dataframe()")
    if len(trials) > len(visible):
        lines.append(
            f"{counted(len(trials) - len(visible), 'hidden trial')}: results.trials has all"
        )
    return "\n".join(lines)


def progress_text(status: StudyStatus) -> str:
    """Return how many trials are finished, and what is the best so far."""
    text = f"{status.finished} of {status.target} trials finished"
    if status.failed:
        text += f", {status.failed} failed"
    return f"{text}; {leader_text(status)}"


def leader_text(status: StudyStatus) -> str:
    """Return which trial, front or configuration is the best so far."""
    if status.objectives:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        return f"Pareto front: {numbers or 'none yet'}"
    if status.best is None:
        return "no best trial yet"
    text = leader_sentence(status.configurations)
    if text is None:
        value = f"{status.objective} {value_shown(status.best.value)}"
        mean = "" if status.best.configuration is None else "mean "
        text = f"best: {status.best.named} with {mean}{value} ({status.direction})"
        twins = twins_text(status)
        text = text if twins is None else f"{text}; {twins}"
    confirmed = leader_sentence(status.confirmed)
    return text if confirmed is None else f"{text}; confirmed by new trainings: {confirmed}"


def twins_text(status: StudyStatus) -> str | None:
    """Return which trials have the best one's parameters, in a study without repeats; None for none."""
    best = status.best
    if best is None or status.configurations:
        return None
    others = {n for group in status.codes if not group.current for n in group.trials}
    same = identity_of(best.params)
    complete = [t for t in status.trials if t.state == "complete" and t.number not in others]
    twins = [t for t in complete if identity_of(t.params) == same and not t.hidden]
    if len(twins) < 2 or not best.params:
        return None
    values = [t.value for t in twins if t.reuses is None and t.value is not None]
    trainings = "trained once"
    if len(values) > 1:
        trainings = f"mean {value_shown(fmean(values))} of {len(values)} trainings"
    return f"trial {best.number} and {counted(len(twins) - 1, 'other')} have these parameters: {trainings}"


def _columns(
    status: StudyStatus, trials: Sequence[TrialRecord]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the aligned cells below each header, and the headers that may be left out, the first one first."""
    objectives = [objective.name for objective in status.objectives] or [status.objective]
    columns: dict[str, list[str]] = {
        "trial": [str(t.number) for t in trials],
        "state": [t.state for t in trials],
    }
    for name in objectives:
        columns[name] = [
            value_shown(t.value if t.values is None else t.values.get(name)) for t in trials
        ]
    if any(t.value_of for t in trials):
        columns["value of"] = [
            "-" if t.value is None else t.value_of or "last epoch" for t in trials
        ]
    names = list(dict.fromkeys(name for t in trials for name in t.params))
    headers = parameter_headers(names, {*columns, "epochs", "attempts"})
    for header, name in zip(headers, names, strict=True):
        columns[header] = [
            parameter_shown(t.params[name]) if name in t.params else "-" for t in trials
        ]
    columns |= {"epochs": [str(len(t.epochs)) for t in trials]}
    columns |= {"attempts": [str(len(t.attempts)) for t in trials]}
    for header, cells in columns.items():
        size = max(map(len, (header, *cells)))
        columns[header] = [cell.rjust(size) for cell in (header, *cells)]
    return columns, ["attempts", "epochs", *reversed(headers)]


def parameter_headers(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return a header for each parameter: its name, or ``params_NAME`` if the name is taken."""
    return [f"params_{name}" if name in taken else name for name in names]
