"""Progress of a study as frozen records: counts, progress of each trial, best trial, and workers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from sweeper.records.code import CodeGroup
from sweeper.records.configurations import ConfigurationRecord, Training, TrialState
from sweeper.records.exactness import Exactness
from sweeper.records.model_source import HasModel, ModelSource
from sweeper.records.printing import JsonRecord, counted, json_fields, value_shown, values_shown
from sweeper.spec.searching import Direction, Objective
from sweeper.spec.space import CategoricalChoice

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
        >>> from sweeper.records.status import WorkerRecord
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
        there = "there" if self.live else "gone"
        said = "" if self.error is None else f": {value_shown(self.error, 200)}"
        where = f"{counted(self.slots, 'slot')} on {self.host}, pid {self.pid}, {self.engine}"
        return f"worker with {where}, {there}{said}"


@dataclass(frozen=True, slots=True)
class BestTrial(HasModel):
    """The complete trial with the best objective.

    Attributes:
        number: The trial's number.
        value: Its objective.
        params: Its parameters, by name.
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

    def __str__(self) -> str:
        return f"trial {self.number}, {values_shown({'value': self.value, **self.params})}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "number", "value", "params")


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
        return f"trial {self.number}, {values_shown(self.values)}, {values_shown(self.params)}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "number", "values", "params")


Ranked = TypeVar("Ranked", bound=Training)


_REPEATED = ("IndependenceError", "NonFiniteError", "UncapturableError")
"""Names of errors that another attempt would raise again, because it has the same seed and data."""

_MISTAKES = (
    *("FactoryError", "IndependenceError", "ObjectiveError", "ParameterError", "UncapturableError"),
    *("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "TypeError"),
)
"""Names of errors of a study's code that interrupt the first trial, because no other can succeed."""


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """Progress of one trial that has begun.

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
        value_of: See `TrialRecord.value_of`.

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
    value_of: str | None = None

    @property
    def would_fail_again(self) -> bool:
        """Return whether it failed with an error that another attempt would raise again."""
        return (self.error or "").startswith(_REPEATED)

    @property
    def shows_a_mistake(self) -> bool:
        """Return whether an error of the study interrupted it, which has to be fixed before a resume."""
        return self.state == "interrupted" and (self.error or "").startswith(_MISTAKES)

    def __str__(self) -> str:
        of = (
            counted(self.epoch, "epoch")
            if self.epochs is None
            else f"{self.epoch}/{self.epochs} epochs"
        )
        given = {"value": self.value} if self.values is None else self.values
        shown = f"{values_shown(given)}, {values_shown(self.params)}"
        return (
            f"trial {self.number} {self.state}, {shown}, {of}, {counted(self.attempts, 'attempt')}"
        )

    def to_json(self) -> dict[str, Any]:
        return json_fields(self, "number", "state", "params", "value", "epoch", "epochs")


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """Number of a study's trials in each state.

    A study of several objectives has no best trial, but a Pareto front.

    Attributes:
        study: The study's name.
        target: The exact total of trials, over all runs.
        complete: Number of trials that trained to their end.
        running: Number of trials with a live attempt.
        interrupted: Number of trials that have begun, have no live attempt, and will be resumed.
        pruned: Number of trials that the pruner or a rung of the budget ended.
        failed: Number of failed trials.
        waiting: Number of trials that have not begun.
        best: The best complete trial; None without one, and with several objectives.
        objectives: The objectives of a study with several, in order; empty otherwise.
        pareto: The trials of the Pareto front, with several objectives.
        exactness: Results of its audits.
        codes: Groups of trials by definition and code, if there are several; ``best`` is then the best
            under the present one.
        objective: The metric by which trials are compared, the first of several.
        direction: Direction of that metric.
        paused: Number of trials that wait at a rung of the budget.
        trials: Every trial that has begun, by number; empty if they were not requested.
        configurations: Its configurations under the present code, complete ones by rank; empty in a
            study that trains each once, and if the trials were not requested. ``best`` is then the
            leading configuration's best trial, with the mean as its value.
        confirmed: The configurations that ``sweeper confirm`` has trained again, by rank.
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
        known = {trial.number: trial for trial in trials}
        groups = sorted(status.codes, key=lambda group: not group.current)
        return [
            trial
            for group in groups
            for trial in ranked(
                [known[number] for number in group.trials if number in known],
                replace(status, codes=()),
            )
        ]
    if status.objectives:
        leading = {trial.number for trial in status.pareto}
        return sorted(trials, key=lambda each: (each.number not in leading, each.number))
    sign = -1.0 if status.direction == "maximize" else 1.0

    def rank(trial: Ranked) -> tuple[bool, float, int]:
        if trial.state != "complete" or trial.value is None or not math.isfinite(trial.value):
            return (True, 0.0, trial.number)
        return (False, sign * trial.value, trial.number)

    return sorted(trials, key=rank)


def leading(status: StudyStatus, count: int) -> list[TrialStatus]:
    """Return the ``count`` best trials under the present definition and code, the best first."""
    others = {n for group in status.codes if not group.current for n in group.trials}
    own = [t for t in status.trials if t.state == "complete" and t.number not in others]
    return ranked(own, replace(status, codes=()))[:count]


def leader_of(configurations: Sequence[ConfigurationRecord]) -> BestTrial | None:
    """Return the best trial of the leading configuration, with the mean as its value; None for none."""
    for each in configurations[:1]:
        if each.state == "complete" and each.best_trial is not None and each.mean is not None:
            return BestTrial(each.best_trial, each.mean, each.params)
    return None


def none_complete(study: str, target: int, errors: Iterable[str | None]) -> str:
    """Return a message that no trial is complete, with the error of the first one.

    Args:
        study: The study's name.
        target: Its total of trials.
        errors: Errors of its failed trials, in order.
    """
    failed = list(errors)
    text = f"study {study!r} has no complete trial yet"
    if failed:
        first = (failed[0] or "no error was kept").strip().rpartition("\n")[2]
        text += f": {len(failed)} of {target} failed, the first with: {first}"
    return text


def are(count: int | None) -> str:
    """Return the verb for ``count`` things: "is" or "are"."""
    return "is" if count == 1 else "are"
