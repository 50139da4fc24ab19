"""Leases of trials, their renewal and loss, all on the database's clock.

A worker renews the leases of its attempts together with its own. An attempt is closed when its
worker's process is known to be gone, or when its lease has expired. Only a worker that was itself
connected for the length of a lease may close others for expired leases: when the server is
reachable again after a minute, every lease has expired, and the first worker to reconnect must not
take the trials of those that reconnect a second later.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import find_study
from sweeper.db.tables import AnyRow, Attempt, Checkpoint, Trial, UtcNow, Worker, count, record_of
from sweeper.records.results import WorkerRecord
from sweeper.support.processes import ProcessIdentity, is_gone

_GAP = 0.5
"""Longest time between renewals, as a share of a lease, for a worker that counts as connected.

A worker renews four times a lease, so a shorter break ends before any other live worker's lease
expires.
"""


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An open attempt to be closed as lost: its worker is gone, or its lease has ended."""

    trial: int
    attempt: int
    token: int = field(default=0, compare=False)
    gone: bool = field(default=False, compare=False)


_GONE = "its worker was killed, or its machine restarted"
_UNRENEWED = (
    "its worker did not renew the lease in time: it was killed or stopped, or cannot reach the "
    "database"
)


def renew(
    connection: Connection,
    tokens: Collection[int],
    lease_seconds: float,
    *,
    worker_key: str | None = None,
) -> frozenset[int]:
    """Renew the leases of attempts, and their worker's own; return the tokens still held.

    An expired lease is renewed too, as long as its attempt is open.
    """
    if worker_key is not None:
        contact_broke = Worker.lease_until < UtcNow((1 - _GAP) * lease_seconds)
        connection.execute(
            sa.update(Worker)
            .where(Worker.key == worker_key, Worker.left_at.is_(None))
            .values(
                lease_until=UtcNow(lease_seconds),
                present_since=sa.case((contact_broke, UtcNow()), else_=Worker.present_since),
            )
        )
    if not tokens:
        return frozenset()
    return frozenset(
        connection.scalars(
            sa.update(Attempt)
            .where(Attempt.id.in_(tokens), Attempt.outcome.is_(None))
            .values(lease_until=UtcNow(lease_seconds))
            .returning(Attempt.id)
        )
    )


def join(
    connection: Connection,
    study: str,
    worker: ProcessIdentity,
    *,
    key: str,
    engine: str = "local",
    slots: int = 1,
    lease_seconds: float = 60.0,
) -> None:
    """Add a worker to the study's list, with its own ``key`` (32 characters)."""
    study_id = find_study(connection, study).id
    present = {
        "left_at": None,
        "error": None,
        "present_since": UtcNow(),
        "lease_until": UtcNow(lease_seconds),
    }
    # A worker has its row already if it left before, or if only the answer to this call was lost.
    rejoined = connection.execute(sa.update(Worker).where(Worker.key == key).values(present))
    if rejoined.rowcount:
        return
    connection.execute(
        sa.insert(Worker).values(
            **present,
            **asdict(worker),
            study_id=study_id,
            key=key,
            engine=engine,
            slots=slots,
            joined_at=UtcNow(),
        )
    )


def leave(connection: Connection, key: str, error: str | None = None) -> None:
    """Record once that a worker has left, and its error if any."""
    connection.execute(
        sa.update(Worker)
        .where(Worker.key == key, Worker.left_at.is_(None))
        .values(left_at=UtcNow(), error=error)
    )


def read_workers(connection: Connection, study: str) -> tuple[WorkerRecord, ...]:
    """Return every present and former worker of the study, in the order of joining."""
    rows = connection.execute(
        sa.select(Worker, (Worker.lease_until < UtcNow()).label("ended"))
        .where(Worker.study_id == find_study(connection, study).id)
        .order_by(Worker.id)
    )
    return tuple(_worker(row) for row in rows)


def lease_has_ended() -> sa.ColumnElement[bool]:
    """Return the condition that the lease of the enclosing query's attempt has ended."""
    return sa.func.coalesce(Attempt.lease_until, Attempt.started_at) < UtcNow()


def open_attempts(*columns: Any) -> sa.Select[Any]:
    """Select the open attempts of all studies for `is_lost`, with their trials' numbers.

    The query also returns the given further columns.
    """
    return (
        sa.select(
            Attempt,
            lease_has_ended().label("lease_ended"),
            Trial.number.label("trial"),
            *columns,
        )
        .join(Trial, Trial.id == Attempt.trial_id)
        # An open attempt's trial is unfinished, and of these there is an index.
        .where(Trial.result.is_(None), Attempt.outcome.is_(None))
    )


def is_lost(attempt: AnyRow) -> bool:
    """Return whether an open attempt's worker is gone; if that is unknown, by its lease."""
    gone = _worker_is_gone(attempt)
    return bool(attempt.lease_ended) if gone is None else gone


def suspects(
    connection: Connection, study: str, observer: str | None, seconds: float
) -> tuple[LostAttempt, ...]:
    """Return the open attempts that may be closed as lost; see `Repository.release_lost`.

    Without an ``observer``, for a caller that is not a worker, expired leases count at once.
    """
    of_study = open_attempts().where(Trial.study_id == find_study(connection, study).id)
    candidates = connection.execute(of_study.order_by(Trial.number)).all()
    if not candidates:
        return ()
    judges = observer is None or was_there(connection, observer, seconds)
    lost = []
    for row in candidates:
        gone = _worker_is_gone(row) is True
        if gone or (row.lease_ended and judges):
            lost.append(LostAttempt(row.trial, row.number, row.id, gone))
    return tuple(lost)


def close_lost(
    connection: Connection, candidates: Collection[LostAttempt]
) -> tuple[LostAttempt, ...]:
    """Close the suspects that are unchanged, as "lost".

    An attempt that its worker closes or renews at the same moment is not changed.
    """
    lost = []
    newest = (
        sa.select(sa.func.max(Checkpoint.step))
        .where(Checkpoint.trial_id == Attempt.trial_id, Checkpoint.attempt == Attempt.number)
        .correlate(Attempt.__table__)
        .scalar_subquery()
    )
    for suspect in candidates:
        # Read again in the statement that closes it: its worker may have renewed the lease since it was
        # suspected.
        still = sa.true() if suspect.gone else lease_has_ended()
        closed = connection.execute(
            sa.update(Attempt)
            .where(Attempt.id == suspect.token, Attempt.outcome.is_(None), still)
            .values(
                outcome="lost",
                ended_at=UtcNow(),
                end_step=newest,
                error=_GONE if suspect.gone else _UNRENEWED,
            )
        )
        if closed.rowcount == 1:
            lost.append(suspect)
    return tuple(lost)


def was_there(connection: Connection, key: str, seconds: float) -> bool:
    """Return whether the worker was connected for the length of a lease."""
    since = Worker.present_since <= UtcNow(-seconds)
    until = Worker.lease_until >= UtcNow((1 - _GAP) * seconds)
    return count(connection, Worker.key == key, since, until) > 0


def _worker(row: AnyRow) -> WorkerRecord:
    gone = is_gone(ProcessIdentity(row.host, row.boot_id, row.pid, row.started))
    connected = gone is not True and (gone is False or not row.ended)
    return record_of(WorkerRecord, row, live=row.left_at is None and connected)


def _worker_is_gone(attempt: AnyRow) -> bool | None:
    return is_gone(
        ProcessIdentity(attempt.host, attempt.boot_id, attempt.worker_pid, attempt.worker_started)
    )
