"""Claims of trials by workers.

A claim is one transaction under a lock on the study, so the rows that it reads do not change before its
insert: the total is exact, and no trial is claimed twice. The cost of its queries does not grow with
the number of finished trials.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows, rungs
from sweeper.db.repeats import next_repeat, patience_end, repeating_of, shown_repeat
from sweeper.db.studies import changes_of, is_open, lock_study, number_of_changes, row_of
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Length,
    Study,
    Trial,
    UtcNow,
    change,
    count,
    record_of,
)
from sweeper.declarations.retries import Fault
from sweeper.declarations.space import CategoricalChoice
from sweeper.errors import DefinitionChangedError, StorageError
from sweeper.support.processes import ProcessIdentity

TrialSeed = Callable[[int], int]
"""``position -> seed`` of a new trial, from 0 to 2**63 - 1; see `Repeating.seed_position`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial that this worker has claimed.

    Attributes:
        attempt: Counted from 1 within the trial.
        token: Fencing token of every write.
        params: Parameters that earlier attempts stored, in the order of suggestion.
        crashes: Number of earlier attempts whose process died, except for lack of memory.
        errors: Number of earlier attempts with an exception of the user's code.
        identity: The study's identity, which is in its checkpoints.
        definition: The fingerprint of the study's definition.
        former: Fingerprints of earlier definitions, whose changes were accepted.
        ignore_checkpoints_through: The last attempt whose checkpoints are not used, because it ran under another
            definition; 0 for none.
        pause_after: Number of epochs after which the trial pauses; None if it trains to its end.
        epochs: Its number of epochs, if it was extended; None for the definition's.
        extended: Whether it has ended before, and is trained further.
        redraws: How often the sampler has drawn its parameters again.
        proposals: Number of earlier proposals of its parameters; see `Repeating.seed_position`.
    """

    study: str
    number: int
    attempt: int
    token: int
    seed: int
    optuna_trial_id: int
    params: Mapping[str, CategoricalChoice] = field(default_factory=dict)
    crashes: int = 0
    memory_faults: int = 0
    errors: int = 0
    identity: str = field(default="", compare=False)
    definition: str = field(default="", compare=False)
    former: tuple[str, ...] = field(default=(), compare=False)
    ignore_checkpoints_through: int = 0
    pause_after: int | None = None
    epochs: int | None = None
    extended: bool = False
    redraws: int = 0
    proposals: int = 0

    def faults(self, fault: Fault) -> int:
        """Return the number of earlier attempts that ended with such a fault."""
        counts = {"crash": self.crashes, "memory": self.memory_faults, "error": self.errors}
        return counts.get(fault, 0)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Answer to a claim when nothing can be claimed now but may be later, because other trials run."""

    reason: str


def claim(
    connection: Connection,
    name: str,
    worker: ProcessIdentity,
    trial_seed: TrialSeed,
    *,
    key: str,
    worker_key: str | None = None,
    devices: str | None = None,
    lease_seconds: float = 60.0,
    fingerprint: str | None = None,
    changes: int | None = None,
) -> Claim | Waiting | None:
    """Claim a trial: the lowest interrupted one, otherwise the lowest promoted one, otherwise a new one.

    Args:
        connection: A writing transaction.
        name: The study's name.
        worker: The claiming worker.
        trial_seed: Returns the seed of a new trial by its number.
        key: 32 characters, equal in every call that repeats this claim after a lost answer; the open
            attempt with this key was inserted by the first call.
        worker_key: The key with which the worker joined the study; None if it has not.
        devices: Devices for the trial; None for no restriction.
        lease_seconds: Duration of the lease.
        fingerprint: Fingerprint of the worker's definition; None for the study's.
        changes: Number of changes of the definition that the worker knows; None for all.

    Returns:
        The claim; `Waiting` if running trials have to end first, or the study is to stop;
        None once all are finished.

    Raises:
        UnknownStudyError: There is no such study.
        StorageError: Another tool has changed the study's Optuna rows.
        DefinitionChangedError: The study's definition differs from the worker's.
    """
    study = lock_study(connection, name)
    _check_same_study(connection, study, fingerprint, changes)
    attempt = connection.execute(
        sa.select(Attempt.id, Attempt.trial_id, Attempt.outcome).where(Attempt.claim_key == key)
    ).first()
    if attempt is not None and attempt.outcome is None:
        claimed = connection.execute(sa.select(Trial).where(Trial.id == attempt.trial_id)).one()
        return _claim(connection, study, claimed, claimed.current_attempt, attempt.id)
    if attempt is not None:
        # The answer was lost for so long that the attempt was closed meanwhile.
        key = uuid.uuid4().hex
    columns = {
        "claim_key": key,
        "host": worker.host,
        "boot_id": worker.boot_id,
        "worker_pid": worker.pid,
        "worker_started": worker.started,
        "worker_key": worker_key,
        "devices": devices,
        "lease_until": UtcNow(lease_seconds),
    }
    if study.stop_requested is not None:
        return Waiting(f"study {name!r} was asked to stop; `sweeper resume {name!r}` continues it")
    trial = _resumable_trial(connection, study)
    while trial is None:
        new = _new_trial(connection, study, trial_seed)
        if isinstance(new, Waiting) and rungs.settle(connection, study):
            # A rung was full without a decision, for example because the total was lowered.
            trial = _resumable_trial(connection, study)
            continue
        if new is None or isinstance(new, Waiting):
            return new
        return _attempt(connection, study, new, 1, columns)
    full = trial.paused and rungs.at_most(study, rungs.running_trials(connection, study))
    if full:
        return Waiting(full)
    number = trial.current_attempt + 1
    change(connection, Trial, trial.id, current_attempt=number, paused=None)
    return _attempt(connection, study, trial, number, columns)


def _check_same_study(
    connection: Connection, study: AnyRow, fingerprint: str | None, changes: int | None
) -> None:
    """Check that the worker knows the stored definition and search."""
    if fingerprint not in (None, study.fingerprint):
        raise DefinitionChangedError(
            f"another run has accepted a changed definition of study {study.name!r}, so this run "
            "begins no trial under the old one; start it again to continue"
        )
    if changes is not None and changes != number_of_changes(connection, study.id):
        raise DefinitionChangedError(
            f"another run has changed the search of study {study.name!r}, so this run begins no trial "
            "with the old one; start it again to continue"
        )


def _attempt(
    connection: Connection, study: AnyRow, trial: AnyRow, number: int, columns: Mapping[str, Any]
) -> Claim:
    added = sa.insert(Attempt).values(
        trial_id=trial.id,
        number=number,
        started_at=UtcNow(),
        definition=study.fingerprint,
        **columns,
    )
    token = connection.execute(added.returning(Attempt.id)).scalar_one()
    return _claim(connection, study, trial, number, token)


def _new_trial(
    connection: Connection, study: AnyRow, trial_seed: TrialSeed
) -> AnyRow | Waiting | None:
    """Start a new trial, or return the reason to wait; None if all have ended."""
    number_or_reason: int | str | None
    if repeating_of(study).is_single:
        numbers = sa.select(sa.func.max(Trial.number)).where(Trial.study_id == study.id)
        last = connection.scalar(numbers)
        number = 0 if last is None else last + 1
        number_or_reason = rungs.reason_to_wait(connection, study, number)
        if number_or_reason is None and number < study.target:
            number_or_reason = number
    else:
        number_or_reason = next_repeat(connection, study)
    if number_or_reason is None:
        return None
    if isinstance(number_or_reason, str):
        return Waiting(number_or_reason)
    target = patience_end(connection, study, number_or_reason)
    if target is None:
        return _insert_trial(connection, study, number_or_reason, trial_seed)
    change(connection, Study, study.id, target=target)
    unfinished = count(connection, Trial.study_id == study.id, Trial.result.is_(None))
    if unfinished:
        return Waiting(f"{unfinished} trials of the last ones are still running")
    return None


def _resumable_trial(connection: Connection, study: AnyRow) -> AnyRow | None:
    """Return the lowest interrupted trial, otherwise the lowest promoted one."""
    return connection.execute(
        sa.select(Trial)
        .where(
            Trial.study_id == study.id,
            Trial.result.is_(None),
            Trial.reuses.is_(None),
            sa.or_(Trial.paused.is_(None), Trial.paused == rungs.PROMOTED),
            ~is_open(),
        )
        .order_by(Trial.paused.is_not(None), Trial.number)
        .limit(1)
    ).first()


def _insert_trial(connection: Connection, study: AnyRow, number: int, seed: TrialSeed) -> AnyRow:
    # Within the next statement, because each is a round trip under the study's lock.
    newest = sa.select(sa.func.coalesce(sa.func.max(Trial.optuna_trial_id), -1)).where(
        Trial.study_id == study.id
    )
    others = optuna_rows.trials_after(connection, study.optuna_study_id, newest.scalar_subquery())
    if others:
        trial_count = count(connection, Trial.study_id == study.id)
        raise StorageError(
            f"study {study.name!r} has {trial_count + others} trials in Optuna's tables and {trial_count} in "
            "sweeper's: another tool added some; run it under another name, and let only sweeper "
            "add trials"
        )
    optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, number)
    if attributes := shown_repeat(study, number):
        optuna_rows.set_attributes(connection, optuna_id, attributes)
    return connection.execute(
        sa.insert(Trial)
        .values(
            study_id=study.id,
            number=number,
            optuna_trial_id=optuna_id,
            seed=seed(repeating_of(study).seed_position(number)),
            current_attempt=1,
            crashes=0,
            epochs=study.epochs,
        )
        .returning(*Trial.__table__.c)
    ).one()


def _claim(connection: Connection, study: AnyRow, trial: AnyRow, number: int, token: int) -> Claim:
    """Return the claim of the trial's attempt ``number``; a new trial needs no further queries."""
    params: Mapping[str, CategoricalChoice] = {}
    former: tuple[str, ...] = ()
    if number > 1:
        changes = changes_of(connection, study.id)
        former = tuple(c.replaced for c in changes if c.replaced is not None)
        parameters = optuna_rows.parameters(connection, (trial.optuna_trial_id,))
        params = parameters[trial.optuna_trial_id].params
    return record_of(
        Claim,
        trial,
        study=study.name,
        attempt=number,
        token=token,
        params=params,
        identity=study.identity,
        definition=study.fingerprint or row_of(study).fingerprint,
        former=former,
        pause_after=rungs.next_rung(connection, study, trial),
        extended=trial.epochs is not None and count(connection, Length.trial_id == trial.id) > 0,
    )
