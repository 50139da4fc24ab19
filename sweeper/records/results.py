"""Results of a study, as frozen records: read from the database, never written back.

A `StudyStatus` counts, a `TrialRecord` holds one trial whole, with its attempts, epochs and
checkpoints. ``to_json`` of each gives the objects of the command-line contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from sweeper.errors import UsageError
from sweeper.records.ancestry import BranchStatus, ParentRecord
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import (
    AuditRecord,
    VerificationMode,
    VerificationRecord,
    VerificationVerdict,
)
from sweeper.records.lengths import LengthRecord, RungRecord
from sweeper.records.model_source import HasModel, ModelSource
from sweeper.records.presentation import (
    FigureSource,
    HasFigures,
    attempt_rows,
    epoch_rows,
    results_html,
    results_text,
    trial_rows,
)
from sweeper.records.printing import counted, json_fields, value_shown, values_shown
from sweeper.records.status import (
    BestTrial,
    Params,
    ParetoTrial,
    StudyStatus,
    TrialState,
    TrialStatus,
    WorkerRecord,
    none_complete,
)
from sweeper.spec.space import Distribution
from sweeper.support.installation import install_command

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AttemptRecord",
    "BestTrial",
    "BranchStatus",
    "CheckpointRecord",
    "EpochRecord",
    "EvaluationRecord",
    "LengthRecord",
    "Outcome",
    "Params",
    "ParentRecord",
    "ParetoTrial",
    "StudyResults",
    "StudyStatus",
    "TrialRecord",
    "TrialState",
    "TrialStatus",
    "VerificationMode",
    "VerificationRecord",
    "VerificationVerdict",
    "WorkerRecord",
]

Outcome = Literal["complete", "interrupted", "paused", "crashed", "lost", "pruned", "failed"]
"""End of an attempt. "lost": its worker vanished; "crashed": its own process died; "paused": it
came to a rung of the study's budget."""

_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch.

    Printed, it is one line, which counts epochs from 1 as tables and logs do.

    Attributes:
        epoch: Its number, from 0, as in Keras and in ``show --json``.
        metrics: Every metric in its logs, by name; those of validation begin with ``val_``.

    Examples:
        >>> sorted(study.results().best.epochs[0].metrics)
        ['accuracy', 'loss', 'val_accuracy', 'val_loss']
    """

    epoch: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}: {values_shown(self.metrics)}"

    def to_json(self) -> dict[str, Any]:
        # A table has the trial's number beside the epoch's; a metric must replace neither.
        named = {
            n if n not in ("epoch", "trial") else f"metrics_{n}": v for n, v in self.metrics.items()
        }
        return {"epoch": self.epoch, **named}


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One committed checkpoint.

    Attributes:
        step: Optimizer steps finished when it was taken, counted over the whole trial.
        epoch: Epochs finished when it was taken.
        digest: XXH3-128 (hex) of every model and optimizer variable in order.
        bytes: Size of its files.
        path: Its directory.

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
        done = counted(self.epoch, "epoch")
        return f"checkpoint at step {self.step} after {done}, {self.bytes} bytes: {self.path}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One process's go at a trial.

    Attributes:
        number: From 1.
        outcome: How it ended: "complete", "interrupted", "paused" (at a rung of the study's budget),
            "crashed" (its process died), "lost" (its worker vanished), "pruned" or "failed"; None
            while it runs.
        start_step: The step that it went on from, 0 from nothing; None before it is known.
        end_step: The last step of which anything is kept; None before there is one.
        host: The machine's name.
        pid: Of the trial's process; None before there is one.
        started_at: When it was claimed; the database's clock.
        ended_at: When it ended; None while it runs.
        error: What ended it, if something was wrong.

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
        said = "" if self.error is None else f": {value_shown(self.error, _LONGEST_ERROR)}"
        return f"attempt {self.number} {self.outcome or 'running'}, {where}{said}"

    def to_json(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(frozen=True, slots=True, repr=False)
class TrialRecord(HasModel):
    """One trial, whole.

    Attributes:
        study: The study's name.
        number: In the study, from 0.
        state: Where it stands: "waiting", "running", "interrupted" (begun, no live attempt, will be
            resumed), "paused" (at a rung of the study's budget), "complete", "pruned" or "failed".
        params: Its parameters, by name.
        epochs: Every finished epoch, in order.
        attempts: Every attempt, in order.
        checkpoints: Those that are kept.
        value: The objective at the epoch that `Study` values trials at, or None before the trial
            is complete or pruned; the first one where there are several.
        seed: The trial's own seed, drawn from the study's seed and the trial's number.
        digest: Of the final training state, or None before the trial is complete or pruned.
        values: Of a complete trial in a study of several objectives, by their names; else None.
        verification: What the latest `sweeper verify` of it found; None before any.
        audits: Its intervals that were audited, or are to be.
        code: The short form of the definition and code that it ran under (`CodeGroup.code`).
        output_only: The kinds of objects that `Trial.output_only` exempted from its checkpoints.
        warm_start: What the latest attempt that began anew took from the file that it began from:
            ``path``, ``kind``, ``digest``, ``matched`` and ``mismatches``; None without such a file.
        anew_after: Of its attempts up to this one nothing is gone on with, because they ran under
            another definition; 0 where there is none such.
        evaluations: What its checkpoints gave on held-out data (`sweeper evaluate`).
        rungs: Of the study's budget, those that it has come to, with what was decided there.
        parent: The checkpoint of another trial that it begins from; None where it began from nothing.
        branch_report: Of a branch that began, ``taken``, ``kept`` and ``mismatches``; else None.
        source: Where its model can be had; None in a record that no study's results gave.
        distributions: What each parameter was drawn from.
        length: How many epochs it trains for at most; None where its study does not say.
        earlier_lengths: What it gave at the lengths that it was extended from, the shortest first.

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
    anew_after: int = 0
    output_only: tuple[str, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    warm_start: Mapping[str, Any] | None = None
    rungs: tuple[RungRecord, ...] = ()
    parent: ParentRecord | None = None
    branch_report: Mapping[str, Any] | None = None
    source: ModelSource | None = field(default=None, repr=False, compare=False)
    distributions: Mapping[str, Distribution] = field(default_factory=dict, repr=False)
    length: int | None = None
    earlier_lengths: tuple[LengthRecord, ...] = ()

    @property
    def lengths(self) -> tuple[LengthRecord, ...]:
        """Return what it gave at every length at which it has come to its end, the shortest first."""
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
        """Return what the latest attempt that ended in an error said, if the trial failed."""
        if self.state != "failed":
            return None
        return next((a.error for a in reversed(self.attempts) if a.error), None)

    def __str__(self) -> str:
        given = {"value": self.value} if self.values is None else self.values
        parts = [f"trial {self.number} of {self.study} {self.state}", values_shown(given)]
        if self.params:
            parts.append(values_shown(self.params))
        done = f"{counted(len(self.epochs), 'epoch')}, {counted(len(self.attempts), 'attempt')}"
        said = "" if self.error is None else f": {value_shown(self.error, _LONGEST_ERROR)}"
        return f"{', '.join(parts)}, {done}{said}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def to_json(self) -> dict[str, Any]:
        return {
            **json_fields(self, "study", "number", "state", "params", "value"),
            **({} if self.values is None else {"values": dict(self.values)}),
            **json_fields(self, "seed", "digest", "parent", "epochs", "attempts", "checkpoints"),
            **json_fields(self, "verification"),
            "audits": [a.to_json() for a in self.audits if a.alike is not None],
            **json_fields(self, "code", "output_only", "evaluations", "rungs", "lengths"),
            **({} if self.warm_start is None else {"warm_start": dict(self.warm_start)}),
            **({} if self.branch_report is None else {"branch": dict(self.branch_report)}),
        }


@dataclass(frozen=True, repr=False)
class StudyResults(HasFigures):
    """Result of `Study.run`: every trial of the study, in the order of their numbers.

    Iterating over it gives its trials, ``len`` how many there are, and ``results[3]`` the trial with the
    number 3. Printed, it is a table of the trials; a notebook shows the same.

    Attributes:
        status: How many trials stand where, and who leads.
        trials: Each trial whole.
        figures: What draws them; None in results that no study gave.

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
    figures: FigureSource | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[TrialRecord]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: int) -> TrialRecord:
        """Return the trial with this number.

        Args:
            number: The trial's, from 0.

        Raises:
            LookupError: There is no such trial.
        """
        for trial in self.trials:
            if trial.number == number:
                return trial
        there = ", ".join(str(trial.number) for trial in self.trials) or "none"
        msg = f"study {self.status.study!r} has no trial {number!r}; it has {there}"
        raise LookupError(msg)

    def __str__(self) -> str:
        return results_text(self.status, self.trials)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return results_html(self.status, self.trials)

    @property
    def best(self) -> TrialRecord:
        """Return the complete trial with the best objective.

        Raises:
            LookupError: No trial is complete yet, or there are several objectives.
        """
        if self.status.objectives:
            names = ", ".join(repr(objective.name) for objective in self.status.objectives)
            msg = (
                f"study {self.status.study!r} has the objectives {names}, so there is no single "
                "best trial; see results.pareto"
            )
            raise LookupError(msg)
        if self.status.best is None:
            errors = [trial.error for trial in self.trials if trial.state == "failed"]
            none = none_complete(self.status.study, self.status.target, errors)
            msg = f"{none}. No trial is the best one"
            raise LookupError(msg)
        number = self.status.best.number
        return next(t for t in self.trials if t.number == number)

    @property
    def pareto(self) -> tuple[TrialRecord, ...]:
        """Return the complete trials that no other one beats in one objective without losing in another.

        With one objective, the best trial alone; empty where no trial is complete.
        """
        leading = {trial.number for trial in self.status.pareto}
        if not self.status.objectives and self.status.best is not None:
            leading = {self.status.best.number}
        return tuple(t for t in self.trials if t.number in leading)

    @property
    def evaluations(self) -> tuple[EvaluationRecord, ...]:
        """Return what checkpoints gave on held-out data, trial by trial; `Study.evaluate` ranks them."""
        return tuple(record for trial in self.trials for record in trial.evaluations)

    def with_models(self, source: ModelSource, figures: FigureSource | None = None) -> StudyResults:
        """Return the same, with each trial's model to be had from ``source``, and drawn by ``figures``.

        Args:
            source: Opens the study and its files when a model is asked for.
            figures: What draws them; None where nothing is to.
        """
        status = self.status
        best = None if status.best is None else replace(status.best, source=source)
        pareto = tuple(replace(trial, source=source) for trial in status.pareto)
        return StudyResults(
            replace(status, best=best, pareto=pareto),
            tuple(replace(trial, source=source) for trial in self.trials),
            figures or self.figures,
        )

    def to_dataframe(self, of: Literal["trials", "epochs", "attempts"] = "trials") -> pd.DataFrame:
        """Return a table: one row a trial, an epoch of a trial, or an attempt at a trial.

        Args:
            of: ``"trials"``, by default: number, state, value, each parameter, how many epochs and
                attempts, the seconds that its attempts took and from which steps the later ones
                went on, seed, digest and error. ``"epochs"``: trial, epoch (from 0) and every
                metric. ``"attempts"``: trial, number, outcome, steps, host and times.

        Raises:
            UsageError: ``of`` is none of these, or pandas is not installed; the message has the
                command that installs it.
        """
        makers = {"trials": trial_rows, "epochs": epoch_rows, "attempts": attempt_rows}
        if of not in makers:
            msg = f"to_dataframe({of!r}); it is one of {', '.join(map(repr, makers))}"
            raise UsageError(msg)
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            msg = (
                f"to_dataframe() needs the package {error.name!r}, which is not installed: "
                f"{install_command('plots')}; or read results.trials"
            )
            raise UsageError(msg) from error

        return pd.DataFrame(makers[of](self.trials))
