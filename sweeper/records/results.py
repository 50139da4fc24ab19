"""Results of a study as frozen records, which are read from the database and never written back.

A `StudyStatus` contains counts, and a `TrialRecord` one trial with its attempts, epochs and
checkpoints. Their ``to_json`` returns the objects of the command-line contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from sweeper.errors import UsageError
from sweeper.records.configurations import (
    ConfigurationRecord,
    TrialState,
    configurations_of,
)
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
    attempt_rows,
    configuration_rows,
    epoch_rows,
    results_html,
    results_text,
    trial_rows,
)
from sweeper.records.printing import JsonRecord, counted, json_fields, value_shown, values_shown
from sweeper.records.status import (
    BestTrial,
    Params,
    ParetoTrial,
    StudyStatus,
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
    "CheckpointRecord",
    "ConfigurationRecord",
    "EpochRecord",
    "EvaluationRecord",
    "LengthRecord",
    "Outcome",
    "Params",
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
"""End of an attempt. "lost": its worker is gone; "crashed": its process died; "paused": it reached a
rung of the study's budget."""

_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch.

    Its text is one line, in which epochs are counted from 1, as in tables and logs.

    Attributes:
        epoch: Its number, from 0, as in Keras and in ``show --json``.
        metrics: All metrics in its logs, by name; those of validation begin with ``val_``.

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
        done = counted(self.epoch, "epoch")
        return f"checkpoint at step {self.step} after {done}, {self.bytes} bytes: {self.path}"


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
        ended_at: Time of its end, by the database's clock; None while it runs.
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
        said = "" if self.error is None else f": {value_shown(self.error, _LONGEST_ERROR)}"
        return f"attempt {self.number} {self.outcome or 'running'}, {where}{said}"


@dataclass(frozen=True, slots=True, repr=False)
class TrialRecord(HasModel):
    """One trial with all details.

    Attributes:
        study: The study's name.
        number: Its number in the study, from 0.
        state: "waiting", "running", "interrupted" (begun, no live attempt, will be resumed), "paused"
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
        anew_after: Number of the last attempt that ran under another definition, and whose
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
    anew_after: int = 0
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
            **({} if self.value_of is None else {"value_of": self.value_of}),
            **json_fields(self, "seed", "digest", "epochs", "attempts", "checkpoints"),
            **json_fields(self, "verification"),
            "audits": [a.to_json() for a in self.audits if a.alike is not None],
            "files": {use: list(files) for use, files in self.files.items()},
            **json_fields(self, "code", "output_only", "evaluations", "rungs", "lengths"),
            **({} if self.warm_start is None else {"warm_start": dict(self.warm_start)}),
        }


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

        With repeats, it is the best trial of the leading configuration, with the configuration's mean as
        its value.

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
        best = self.status.best
        trial = next(t for t in self.trials if t.number == best.number)
        return replace(trial, value=best.value) if self.status.configurations else trial

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
        makers = {"trials": trial_rows, "epochs": epoch_rows, "attempts": attempt_rows}
        if of not in makers:
            msg = f"to_dataframe({of!r}); it is one of {', '.join(map(repr, makers))}"
            raise UsageError(msg)
        if by not in ("trial", "configuration") or (by == "configuration" and of != "trials"):
            msg = f"to_dataframe({of!r}, by={by!r}); by is 'trial', or 'configuration' without of"
            raise UsageError(msg)
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            msg = (
                f"to_dataframe() needs the package {error.name!r}, which is not installed: "
                f"{install_command('plots')}; or read results.trials"
            )
            raise UsageError(msg) from error

        if by == "configuration":
            return pd.DataFrame(configuration_rows(self.configurations))
        return pd.DataFrame(makers[of](self.trials))
