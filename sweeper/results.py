"""What a study has produced so far, as frozen records: read from the database, never written back.

A `StudyStatus` counts, a `TrialRecord` holds one trial whole, with its attempts, epochs and
checkpoints. ``to_json`` of each gives the objects of the command-line contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from sweeper.code import CodeGroup
from sweeper.errors import UsageError
from sweeper.exactness import (
    AuditRecord,
    Exactness,
    VerificationMode,
    VerificationRecord,
    VerificationVerdict,
)
from sweeper.installation import install_command
from sweeper.searching import Objective
from sweeper.space import CategoricalChoice

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AttemptRecord",
    "BestTrial",
    "CheckpointRecord",
    "EpochRecord",
    "Outcome",
    "ParetoTrial",
    "StudyResults",
    "StudyStatus",
    "TrialRecord",
    "TrialState",
    "VerificationMode",
    "VerificationRecord",
    "VerificationVerdict",
    "WorkerRecord",
]

TrialState = Literal["waiting", "running", "interrupted", "complete", "pruned", "failed"]
"""Where a trial stands. "interrupted": begun, no live attempt, will be resumed."""

Outcome = Literal["complete", "interrupted", "crashed", "lost", "pruned", "failed"]
"""How an attempt ended. "lost": its worker vanished; "crashed": its own process died."""

Params = Mapping[str, CategoricalChoice]

_NOTHING_AUDITED = Exactness()


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One finished epoch: its number from 0, and every metric in its logs."""

    epoch: int
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"epoch": self.epoch, **self.metrics}


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One committed checkpoint.

    Attributes:
        step: Optimizer steps finished when it was taken, counted over the whole trial.
        epoch: Epochs finished when it was taken.
        digest: XXH3-128 (hex) of every model and optimizer variable in order.
        bytes: Size of its files.
        path: Its directory.
    """

    step: int
    epoch: int
    digest: str
    bytes: int
    path: str

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "digest": self.digest,
            "bytes": self.bytes,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One process's go at a trial. ``outcome`` is None while it runs."""

    number: int
    outcome: Outcome | None
    start_step: int | None
    end_step: int | None
    host: str
    pid: int | None
    started_at: datetime
    ended_at: datetime | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "outcome": self.outcome,
            "start_step": self.start_step,
            "end_step": self.end_step,
            "host": self.host,
            "pid": self.pid,
            "started_at": self.started_at.isoformat(),
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial, whole.

    Attributes:
        value: The objective at the last epoch, or None before the trial is complete or pruned;
            the first one where there are several.
        seed: The trial's own seed, drawn from the study's seed and the trial's number.
        digest: Of the final training state, or None before the trial is complete or pruned.
        values: Of a complete trial in a study of several objectives, by their names; else None.
        verification: What the latest `sweeper verify` of it found; None before any.
        audits: Its intervals that were audited, or are to be.
        code: The short form of the definition and code that it ran under (`CodeGroup.code`).
        output_only: The kinds of objects that `Trial.output_only` exempted from its checkpoints.
        anew_after: Of its attempts up to this one nothing is gone on with, because they ran under
            another definition; 0 where there is none such.
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

    @property
    def error(self) -> str | None:
        """What the latest attempt that ended in an error said, if the trial failed."""
        if self.state != "failed":
            return None
        return next((a.error for a in reversed(self.attempts) if a.error), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "number": self.number,
            "state": self.state,
            "params": dict(self.params),
            "value": self.value,
            **({} if self.values is None else {"values": dict(self.values)}),
            "seed": self.seed,
            "digest": self.digest,
            "epochs": [e.to_json() for e in self.epochs],
            "attempts": [a.to_json() for a in self.attempts],
            "checkpoints": [c.to_json() for c in self.checkpoints],
            "verification": None if self.verification is None else self.verification.to_json(),
            "audits": [a.to_json() for a in self.audits if a.alike is not None],
            "code": self.code,
            "output_only": list(self.output_only),
        }


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A process that lends, or lent, slots to a study.

    Attributes:
        key: Unique to this one process's stay.
        engine: What placed it: "local", "dask" or "ray".
        slots: How many trials it runs side by side.
        lease_until: When it counts as gone unless it is heard of before; the database's clock.
        left_at: When it left by itself; None while it is there, or if it was lost.
        error: Why it left, if something was wrong.
        live: Whether it is there: it has not left, its lease has not ended, and its process is
            not known to be gone.
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

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "host": self.host,
            "pid": self.pid,
            "engine": self.engine,
            "slots": self.slots,
            "joined_at": self.joined_at.isoformat(),
            "lease_until": self.lease_until.isoformat(),
            "left_at": None if self.left_at is None else self.left_at.isoformat(),
            "error": self.error,
            "live": self.live,
        }


@dataclass(frozen=True, slots=True)
class BestTrial:
    """The leading complete trial."""

    number: int
    value: float
    params: Params

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "value": self.value, "params": dict(self.params)}


@dataclass(frozen=True, slots=True)
class ParetoTrial:
    """A complete trial that no other one beats in one objective without losing in another."""

    number: int
    values: Mapping[str, float]
    params: Params

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "values": dict(self.values),
            "params": dict(self.params),
        }


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """How many of a study's trials stand where. ``target`` is the exact total asked for.

    A study of several objectives has no best trial, but a Pareto front; its ``objectives`` are
    named here, and any other study's are not. ``exactness`` is what its audits found. Where trials
    ran under several definitions or codes, ``codes`` has them apart, and ``best`` is of the present
    one's.
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

    @property
    def finished(self) -> int:
        return self.complete + self.pruned + self.failed

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "target": self.target,
            "complete": self.complete,
            "running": self.running,
            "interrupted": self.interrupted,
            "pruned": self.pruned,
            "failed": self.failed,
            "waiting": self.waiting,
            "best": None if self.best is None else self.best.to_json(),
            "audited": self.exactness.to_json(),
            **({"codes": [group.to_json() for group in self.codes]} if self.codes else {}),
            **self._front(),
        }

    def _front(self) -> dict[str, Any]:
        if not self.objectives:
            return {}
        return {
            "objectives": [{"name": o.name, "direction": o.direction} for o in self.objectives],
            "pareto": [trial.to_json() for trial in self.pareto],
        }


@dataclass(frozen=True)
class StudyResults:
    """What `Study.run` returns: every trial of the study, in the order of their numbers."""

    status: StudyStatus
    trials: tuple[TrialRecord, ...] = field(default=(), repr=False)

    @property
    def best(self) -> TrialRecord:
        """The complete trial with the best objective.

        Raises:
            LookupError: No trial is complete yet, or there are several objectives.
        """
        if self.status.objectives:
            names = ", ".join(repr(objective.name) for objective in self.status.objectives)
            msg = (
                f"study {self.status.study!r} has the objectives {names}, so no one best trial; "
                "see results.pareto"
            )
            raise LookupError(msg)
        if self.status.best is None:
            msg = f"study {self.status.study!r} has no complete trial yet, so no best one"
            raise LookupError(msg)
        number = self.status.best.number
        return next(t for t in self.trials if t.number == number)

    @property
    def pareto(self) -> tuple[TrialRecord, ...]:
        """The complete trials that no other one beats in one objective without losing in another.

        With one objective, the best trial alone; empty where no trial is complete.
        """
        leading = {trial.number for trial in self.status.pareto}
        if not self.status.objectives and self.status.best is not None:
            leading = {self.status.best.number}
        return tuple(t for t in self.trials if t.number in leading)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a trial: number, state, value, each parameter, epochs, attempts and digest.

        Raises:
            UsageError: pandas is not installed; the message has the command that installs it.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            msg = (
                f"to_dataframe() needs the package {error.name!r}, which is not installed; "
                f"{install_command('plots')}, or read results.trials"
            )
            raise UsageError(msg) from error

        rows = [
            {
                "number": t.number,
                "state": t.state,
                "value": t.value,
                **{f"values_{name}": value for name, value in (t.values or {}).items()},  # noqa: PD011
                **{f"params_{name}": value for name, value in t.params.items()},
                "epochs": len(t.epochs),
                "attempts": len(t.attempts),
                "digest": t.digest,
            }
            for t in self.trials
        ]
        return pd.DataFrame(rows)
