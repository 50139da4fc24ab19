"""Leases of trials, their renewal and loss, all on the database's clock.

A worker renews the leases of its attempts together with its own. An attempt is closed when its
worker's process is known to be gone, or when its lease has expired. Only a worker that was itself
connected for the length of a lease may close others for expired leases: when the server is
reachable again after a minute, every lease has expired, and the first worker to reconnect must not
take the trials of those that reconnect a second later.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import find_study
from sweeper.db.tables import AnyRow, Attempt, Checkpoint, Trial, UtcAfter, UtcNow, Worker
from sweeper.records.results import WorkerRecord
from sweeper.support.processes import ProcessIdentity, is_gone

_GAP = 0.5
"""Longest time between renewals, as a share of a lease, for a worker that counts as connected.

A worker renews four times a lease, so a shorter break ends before any other live worker's lease
expires.
"""


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that was closed because its worker is gone."""

    trial: int
    attempt: int


_GONE = "its worker was killed, or its machine restarted"
_UNRENEWED = (
    "its worker did not renew the lease in time: it was killed or stopped, or cannot reach the "
    "database"
)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An open attempt to be closed: its worker is gone, or its lease has ended."""

    token: int
    lost: LostAttempt
    gone: bool


def renew(connection: Connection, tokens: Collection[int], seconds: float) -> frozenset[int]:
    """Extend the leases of the attempts that are still open; return their tokens.

    An expired lease is renewed too, as long as its attempt is open.
    """
    if not tokens:
        return frozenset()
    return frozenset(
        connection.scalars(
            sa.update(Attempt)
            .where(Attempt.id.in_(tokens), Attempt.outcome.is_(None))
            .values(lease_until=UtcAfter(seconds))
            .returning(Attempt.id)
        )
    )


def renew_worker(connection: Connection, key: str, seconds: float) -> bool:
    """Extend a worker's own lease; return whether a worker with this key exists and has not left."""
    contact_broke = Worker.lease_until < UtcAfter((1 - _GAP) * seconds)
    renewed = connection.execute(
        sa.update(Worker)
        .where(Worker.key == key, Worker.left_at.is_(None))
        .values(
            lease_until=UtcAfter(seconds),
            present_since=sa.case((contact_broke, UtcNow()), else_=Worker.present_since),
        )
    )
    return renewed.rowcount == 1


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
    now = {
        "left_at": None,
        "error": None,
        "present_since": UtcNow(),
        "lease_until": UtcAfter(lease_seconds),
    }
    back = connection.execute(sa.update(Worker).where(Worker.key == key).values(now))
    if back.rowcount:
        return
    connection.execute(
        sa.insert(Worker).values(
            **now,
            study_id=study_id,
            key=key,
            host=worker.host,
            boot_id=worker.boot_id,
            pid=worker.pid,
            started=worker.started,
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
) -> tuple[Suspect, ...]:
    """Return the open attempts that may be closed as lost; see `Repository.release_lost`.

    Without an ``observer``, for a caller that is not a worker, expired leases count at once.
    """
    candidates = connection.execute(
        open_attempts()
        .where(Trial.study_id == find_study(connection, study).id)
        .order_by(Trial.number)
    ).all()
    if not candidates:
        return ()
    judges = observer is None or was_there(connection, observer, seconds)
    found = []
    for row in candidates:
        gone = _worker_is_gone(row) is True
        if gone or (row.lease_ended and judges):
            found.append(Suspect(row.id, LostAttempt(row.trial, row.number), gone))
    return tuple(found)


def close_lost(connection: Connection, found: Collection[Suspect]) -> tuple[LostAttempt, ...]:
    """Close the suspects that are unchanged, as "lost".

    An attempt that its worker closes or renews at the same moment is not changed.
    """
    lost = []
    for suspect in found:
        still = sa.true() if suspect.gone else lease_has_ended()
        closed = connection.execute(
            sa.update(Attempt)
            .where(Attempt.id == suspect.token, Attempt.outcome.is_(None), still)
            .values(
                outcome="lost",
                ended_at=UtcNow(),
                end_step=_newest_checkpoint(),
                error=_GONE if suspect.gone else _UNRENEWED,
            )
        )
        if closed.rowcount == 1:
            lost.append(suspect.lost)
    return tuple(lost)


def was_there(connection: Connection, key: str, seconds: float) -> bool:
    """Return whether the worker was connected for the length of a lease."""
    return bool(
        connection.scalar(
            sa.select(
                sa.and_(
                    Worker.present_since <= UtcAfter(-seconds),
                    Worker.lease_until >= UtcAfter((1 - _GAP) * seconds),
                )
            ).where(Worker.key == key)
        )
    )


def _newest_checkpoint() -> sa.ScalarSelect[int | None]:
    """Return the step of the newest checkpoint of the enclosing query's attempt, as a subquery."""
    return (
        sa.select(sa.func.max(Checkpoint.step))
        .where(Checkpoint.trial_id == Attempt.trial_id, Checkpoint.attempt == Attempt.number)
        .correlate(Attempt.__table__)
        .scalar_subquery()
    )


def _worker(row: AnyRow) -> WorkerRecord:
    identity = ProcessIdentity(row.host, row.boot_id, row.pid, row.started)
    gone = is_gone(identity)
    return WorkerRecord(
        key=row.key,
        host=row.host,
        pid=row.pid,
        engine=row.engine,
        slots=row.slots,
        joined_at=row.joined_at,
        lease_until=row.lease_until,
        left_at=row.left_at,
        error=row.error,
        live=row.left_at is None and gone is not True and (gone is False or not row.ended),
    )


def _worker_is_gone(attempt: AnyRow) -> bool | None:
    return is_gone(
        ProcessIdentity(attempt.host, attempt.boot_id, attempt.worker_pid, attempt.worker_started)
    )
