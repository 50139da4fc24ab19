"""Claim the next trial for a worker.

A claim is one transaction under a lock on the study: what it looks at cannot change before what it
inserts is there. So the total is exact, and no trial is given out twice, without any later
reconciling. None of its queries grows with the trials that are finished.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sweeper.errors import DefinitionChangedError, DefinitionError, StorageError
from sweeper.policy import Fault
from sweeper.processes import ProcessIdentity as WorkerIdentity
from sweeper.space import CategoricalChoice
from sweeper.storage import optuna_rows
from sweeper.storage.studies import changes_of, lock_study
from sweeper.storage.study_rows import row_of
from sweeper.storage.tables import Attempt, Trial, UtcAfter, UtcNow

__all__ = ["Claim", "Lease", "TrialSeed", "Waiting", "claim", "is_open"]

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
        crashes: How many of them ended with their process's death, lack of memory aside.
        memory_faults: How many because memory ran out.
        errors: How many with an exception of the user's code.
        identity: The study's, which its checkpoints bear.
        definition: The fingerprint of the study's definition.
        former: Fingerprints of definitions that it had before, each change of which was accepted.
        anew_after: Up to which attempt none is gone on with, because they ran under another
            definition; 0 where there is none such.
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
    memory_faults: int = 0
    errors: int = 0
    identity: str = field(default="", compare=False)
    definition: str = field(default="", compare=False)
    former: tuple[str, ...] = field(default=(), compare=False)
    anew_after: int = 0

    def faults(self, fault: Fault) -> int:
        """How many attempts so far ended with such a fault."""
        counts: dict[Fault, int] = {
            "crash": self.crashes,
            "memory": self.memory_faults,
            "error": self.errors,
        }
        return counts.get(fault, 0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be claimed now, but may be later: other trials are still running."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """What a claim is held by.

    Attributes:
        worker_key: Of the worker's place in the study's list, if it has joined.
        devices: That the trial will see; None where nobody chose.
        seconds: For which the claim holds unless it is renewed.
        fingerprint: Of the definition that the worker has; None where it is the study's own.
    """

    worker_key: str | None = None
    devices: str | None = None
    seconds: float = 60.0
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    id: int
    number: int
    optuna_trial_id: int
    seed: int
    attempts: int
    crashes: int = 0
    memory_faults: int = 0
    errors: int = 0
    anew_after: int = 0


def claim(  # noqa: PLR0917 - what a claim is made of, in the order of the repository's own
    connection: Connection,
    name: str,
    worker: WorkerIdentity,
    trial_seed: TrialSeed,
    key: str,
    lease: Lease | None = None,
) -> Claim | Waiting | None:
    """Claim the lowest interrupted trial, else a new one, for ``worker``.

    Args:
        connection: In a writing transaction.
        name: The study's.
        worker: Whose attempt it will be.
        trial_seed: Gives a new trial its seed.
        key: Unique to this claim. Where the transaction is run again because its commit's answer
            was lost, the open attempt with this key is the one that the first run inserted.
        lease: How long it holds, and for whom.

    Returns:
        The claim; `Waiting` while running trials hold everything up, or once a stop is requested;
        None once all trials are finished.

    Raises:
        UnknownStudyError: There is no such study.
        StorageError: Another tool added trials to Optuna's half of the study, or deleted it.
        DefinitionChangedError: The study's definition is not the worker's any more.
    """
    study = lock_study(connection, name)
    if lease is not None and lease.fingerprint not in (None, study.fingerprint):
        msg = (
            f"the definition of study {name!r} was changed by another run, which accepted that, "
            "so this one begins no trial under the old one; start it again to go on"
        )
        raise DefinitionChangedError(msg)
    made = connection.execute(
        sa.select(Attempt.id, Attempt.trial_id, Attempt.outcome).where(Attempt.claim_key == key)
    ).first()
    if made is not None and made.outcome is not None:
        # The answer was so long in coming that the attempt was given up in the meantime.
        return claim(connection, name, worker, trial_seed, uuid.uuid4().hex, lease)
    if made is not None:
        before = connection.execute(sa.select(Trial).where(Trial.id == made.trial_id)).one()
        return _claim(connection, study, _known(before, before.current_attempt - 1), made.id)
    if study.stop_requested is not None:
        return Waiting(f"study {name!r} was asked to stop; sweeper resume {name} goes on with it")
    found = connection.execute(
        sa.select(Trial)
        .where(Trial.study_id == study.id, Trial.result.is_(None), ~is_open())
        .order_by(Trial.number)
        .limit(1)
    ).first()
    if found is not None:
        trial = _known(found, found.current_attempt)
        connection.execute(
            sa.update(Trial)
            .where(Trial.id == trial.id)
            .values(current_attempt=Trial.current_attempt + 1)
        )
    else:
        last = _last(connection, study.id)
        begun = 0 if last is None else last.number + 1
        waiting = _held_up(connection, study, begun)
        if waiting is not None:
            return waiting
        if begun >= study.target:
            return None
        trial = _begin(connection, study, last, trial_seed)
    token = _attempt(connection, study, trial, worker, key, lease or Lease())
    return _claim(connection, study, trial, token)


def is_open() -> sa.Exists:
    """Whether the trial of the enclosing query has an open attempt."""
    return (
        sa.exists()
        .where(Attempt.trial_id == Trial.id, Attempt.outcome.is_(None))
        .correlate(Trial.__table__)
    )


def _last(connection: Connection, study_id: int) -> Row[int, int] | None:
    return connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id)
        .where(Trial.study_id == study_id)
        .order_by(Trial.number.desc())
        .limit(1)
    ).first()


def _held_up(connection: Connection, study: Row[Any], begun: int) -> Waiting | None:
    if begun < study.target and study.window is None:
        return None
    unfinished = sa.and_(Trial.study_id == study.id, Trial.result.is_(None))
    lowest = connection.scalar(
        sa.select(Trial.number).where(unfinished).order_by(Trial.number).limit(1)
    )
    if lowest is None:
        return None
    if begun >= study.target:
        running = connection.scalar(sa.select(sa.func.count()).select_from(Trial).where(unfinished))
        return Waiting(f"all {begun} trials have begun, and {running} are still running")
    if lowest <= begun - study.window:
        return Waiting(f"trial {begun} learns from trial {lowest}, which is still running")
    concurrency = json.loads(study.definition).get("concurrency", study.window)
    if begun - lowest >= concurrency:
        running = connection.scalar(sa.select(sa.func.count()).select_from(Trial).where(unfinished))
        if running >= concurrency:
            return Waiting(f"{running} trials are running (concurrency={concurrency})")
    return None


def _begin(
    connection: Connection, study: Row[Any], last: Row[int, int] | None, seed: TrialSeed
) -> _Trial:
    number, newest = (0, -1) if last is None else (last.number + 1, last.optuna_trial_id)
    others = optuna_rows.trials_after(connection, study.optuna_study_id, newest)
    if others:
        msg = (
            f"study {study.name!r} has {number + others} trials in Optuna's tables and {number} in "
            "sweeper's: another tool added some; run it under another name, and let only sweeper "
            "add trials"
        )
        raise StorageError(msg)
    value = seed(number)
    if not 0 <= value <= _LARGEST_SEED:
        msg = f"trial {number} was given the seed {value}; expected 0 to 2**63 - 1"
        raise DefinitionError(msg)
    optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, number)
    inserted = connection.execute(
        sa.insert(Trial).values(
            study_id=study.id,
            number=number,
            optuna_trial_id=optuna_id,
            seed=value,
            current_attempt=1,
            crashes=0,
        )
    ).inserted_primary_key
    return _Trial(_key(inserted), number, optuna_id, value, attempts=0)


def _attempt(  # noqa: PLR0917 - the columns of the row, in their order
    connection: Connection,
    study: Row[Any],
    trial: _Trial,
    worker: WorkerIdentity,
    key: str,
    lease: Lease,
) -> int:
    return _key(
        connection.execute(
            sa.insert(Attempt).values(
                trial_id=trial.id,
                number=trial.attempts + 1,
                claim_key=key,
                host=worker.host,
                boot_id=worker.boot_id,
                worker_pid=worker.pid,
                worker_started=worker.started,
                worker_key=lease.worker_key,
                devices=lease.devices,
                lease_until=UtcAfter(lease.seconds),
                started_at=UtcNow(),
                definition=study.fingerprint,
            )
        ).inserted_primary_key
    )


def _known(row: Row[Any], attempts: int) -> _Trial:
    return _Trial(
        row.id,
        row.number,
        row.optuna_trial_id,
        row.seed,
        attempts,
        row.crashes,
        row.memory_faults,
        row.errors,
        row.anew_after,
    )


def _key(inserted: Any) -> int:
    if inserted is None:
        msg = "the database returned no key for a new row"
        raise StorageError(msg)
    return int(inserted[0])


def _claim(connection: Connection, study: Row[Any], trial: _Trial, token: int) -> Claim:
    """The claim's record; ``trial.attempts`` is how many there were before this one."""
    stored = {}
    former: tuple[str, ...] = ()
    if trial.attempts:
        changes = changes_of(connection, study.id)
        former = tuple(c.replaced for c in changes if c.replaced is not None)
        stored = optuna_rows.parameters(connection, (trial.optuna_trial_id,))
    return Claim(
        study=study.name,
        number=trial.number,
        attempt=trial.attempts + 1,
        token=token,
        seed=trial.seed,
        optuna_trial_id=trial.optuna_trial_id,
        params={n: p.value for n, p in stored.get(trial.optuna_trial_id, {}).items()},
        previous_attempts=trial.attempts,
        crashes=trial.crashes,
        memory_faults=trial.memory_faults,
        errors=trial.errors,
        identity=study.identity,
        definition=study.fingerprint or row_of(study).fingerprint,
        former=former,
        anew_after=trial.anew_after,
    )
