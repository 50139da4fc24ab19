"""Claim the next trial for a worker, and give up the attempts of workers that are gone.

A claim is one transaction under a lock on the study: what it counts cannot change before what it
inserts is there. So the total is exact, and no trial is given out twice, without any later
reconciling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sweeper.errors import DefinitionError, StorageError
from sweeper.space import CategoricalChoice
from sweeper.storage import optuna_rows
from sweeper.storage.studies import begun_trials, find_study, lock_study
from sweeper.storage.tables import Attempt, Checkpoint, Trial, UtcNow
from sweeper.storage.workers import WorkerIdentity, worker_is_gone

__all__ = ["Claim", "LostAttempt", "TrialSeed", "Waiting", "claim", "is_open", "release_lost"]

TrialSeed = Callable[[int], int]
"""``number -> seed`` of a new trial, from 0 to 2**63 - 1."""

_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial that is now this worker's.

    Attributes:
        attempt: Counted from 1 within the trial.
        token: Goes with every write; refused once another attempt is the trial's current one.
        params: What earlier attempts stored, in the order of suggestion.
        previous_attempts: How many attempts there were before.
        crashes: How many of them ended with their process's death.
    """

    study: str
    number: int
    attempt: int
    token: int
    seed: int
    optuna_trial_id: int
    params: Mapping[str, CategoricalChoice] = field(default_factory=dict)
    previous_attempts: int = 0
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be claimed now, but may be later: other trials are still running."""

    reason: str


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that was closed because its worker is gone."""

    trial: int
    attempt: int


def claim(
    connection: Connection, name: str, worker: WorkerIdentity, trial_seed: TrialSeed, key: str
) -> Claim | Waiting | None:
    """Claim the lowest interrupted trial, else a new one, for ``worker``.

    Args:
        connection: In a writing transaction.
        name: The study's.
        worker: Whose attempt it will be.
        trial_seed: Gives a new trial its seed.
        key: Unique to this claim. Where the transaction is run again because its commit's answer
            was lost, the attempt with this key is the one that the first run inserted.

    Returns:
        The claim; `Waiting` while running trials hold everything up; None once all are finished.

    Raises:
        UnknownStudyError: There is no such study.
        StorageError: Another tool added trials to Optuna's half of the study, or deleted it.
    """
    study = lock_study(connection, name)
    made = connection.execute(sa.select(Attempt).where(Attempt.claim_key == key)).first()
    if made is not None:
        before = connection.execute(sa.select(Trial).where(Trial.id == made.trial_id)).one()
        return _claim(connection, study, before, made.id)
    trial = connection.execute(
        sa.select(Trial)
        .where(Trial.study_id == study.id, Trial.result.is_(None), ~is_open())
        .order_by(Trial.number)
        .limit(1)
    ).first()
    if trial is None:
        begun = begun_trials(connection, study.id)
        waiting = _held_up(connection, study, begun)
        if waiting is not None:
            return waiting
        if begun >= study.target:
            return None
        trial = _begin(connection, study, begun, trial_seed)
    return _claim(connection, study, *_attempt(connection, trial, worker, key))


def release_lost(connection: Connection, name: str) -> tuple[LostAttempt, ...]:
    """Close the open attempts whose worker's process is gone from this host, as "lost".

    An attempt that its worker closes at the same moment stays as the worker closed it.
    """
    study = find_study(connection, name)
    candidates = connection.execute(
        sa.select(
            Attempt.id,
            Attempt.number,
            Attempt.host,
            Attempt.boot_id,
            Attempt.worker_pid,
            Attempt.worker_started,
            Trial.number.label("trial"),
        )
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Trial.study_id == study.id, Attempt.outcome.is_(None))
        .order_by(Trial.number)
    ).all()
    lost = []
    for row in candidates:
        worker = WorkerIdentity(row.host, row.boot_id, row.worker_pid, row.worker_started)
        if worker_is_gone(worker) is not True:
            continue
        closed = connection.execute(
            sa.update(Attempt)
            .where(Attempt.id == row.id, Attempt.outcome.is_(None))
            .values(outcome="lost", ended_at=UtcNow(), end_step=_newest_checkpoint())
        )
        if closed.rowcount == 1:
            lost.append(LostAttempt(row.trial, row.number))
    return tuple(lost)


def _newest_checkpoint() -> sa.ScalarSelect[int | None]:
    """The last step of the enclosing query's attempt that is known: its newest checkpoint's."""
    return (
        sa.select(sa.func.max(Checkpoint.step))
        .where(Checkpoint.trial_id == Attempt.trial_id, Checkpoint.attempt == Attempt.number)
        .correlate(Attempt.__table__)
        .scalar_subquery()
    )


def is_open() -> sa.Exists:
    """Whether the trial of the enclosing query has an open attempt."""
    return (
        sa.exists()
        .where(Attempt.trial_id == Trial.id, Attempt.outcome.is_(None))
        .correlate(Trial.__table__)
    )


def _held_up(connection: Connection, study: Row[Any], begun: int) -> Waiting | None:
    unfinished = tuple(
        connection.scalars(
            sa.select(Trial.number)
            .where(Trial.study_id == study.id, Trial.result.is_(None))
            .order_by(Trial.number)
        )
    )
    if not unfinished:
        return None
    if begun >= study.target:
        return Waiting(f"all {begun} trials have begun, and {len(unfinished)} are still running")
    if study.window is not None and unfinished[0] <= begun - study.window:
        return Waiting(
            f"trial {begun} learns from trial {unfinished[0]}, which is still running "
            f"(concurrency={study.window})"
        )
    return None


def _begin(connection: Connection, study: Row[Any], number: int, seed: TrialSeed) -> Row[Any]:
    in_optuna = optuna_rows.trial_count(connection, study.optuna_study_id)
    if in_optuna != number:
        msg = (
            f"study {study.name!r} has {in_optuna} trials in Optuna's tables and {number} in "
            "sweeper's: another tool added some; run it under another name, and let only sweeper "
            "add trials"
        )
        raise StorageError(msg)
    value = seed(number)
    if not 0 <= value <= _LARGEST_SEED:
        msg = f"trial {number} was given the seed {value}; expected 0 to 2**63 - 1"
        raise DefinitionError(msg)
    connection.execute(
        sa.insert(Trial).values(
            study_id=study.id,
            number=number,
            optuna_trial_id=optuna_rows.create_trial(connection, study.optuna_study_id, number),
            seed=value,
            current_attempt=0,
            crashes=0,
        )
    )
    return connection.execute(
        sa.select(Trial).where(Trial.study_id == study.id, Trial.number == number)
    ).one()


def _attempt(
    connection: Connection, trial: Row[Any], worker: WorkerIdentity, key: str
) -> tuple[Row[Any], int]:
    number = trial.current_attempt + 1
    inserted = connection.execute(
        sa.insert(Attempt).values(
            trial_id=trial.id,
            number=number,
            claim_key=key,
            host=worker.host,
            boot_id=worker.boot_id,
            worker_pid=worker.pid,
            worker_started=worker.started,
            started_at=UtcNow(),
        )
    ).inserted_primary_key
    connection.execute(sa.update(Trial).where(Trial.id == trial.id).values(current_attempt=number))
    current = connection.execute(sa.select(Trial).where(Trial.id == trial.id)).one()
    if inserted is None:
        msg = "the database returned no key for the new attempt"
        raise StorageError(msg)
    return current, int(inserted[0])


def _claim(connection: Connection, study: Row[Any], trial: Row[Any], token: int) -> Claim:
    stored = optuna_rows.parameters(connection, (trial.optuna_trial_id,))
    return Claim(
        study=study.name,
        number=trial.number,
        attempt=trial.current_attempt,
        token=token,
        seed=trial.seed,
        optuna_trial_id=trial.optuna_trial_id,
        params={n: p.value for n, p in stored.get(trial.optuna_trial_id, {}).items()},
        previous_attempts=trial.current_attempt - 1,
        crashes=trial.crashes,
    )
