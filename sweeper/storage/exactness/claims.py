"""Claims on audit intervals by compare-and-set, verdicts under a claim, and waiting workers.

A claim is one update that names the claim which it takes the place of, so two workers never have
one audit; a verdict is one update that names its own claim, so none is written twice, and none by a
worker that was cut off meanwhile. After three claims without a verdict an audit is no more tried:
what killed its process each time would go on doing so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditOutcome
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.leases import was_there
from sweeper.storage.queries.studies import find_study, trials_of
from sweeper.storage.tables import AnyRow, Attempt, Audit, Trial, UtcAfter, UtcNow, Worker
from sweeper.support.processes import ProcessIdentity, is_gone

FIRST_INTERVALS = 2
"""So many intervals of a study's first trial are audited before other trials go on past them."""

MOST_TRIES = 3
"""So often an audit is claimed, at most."""

_SHARE = 0.03
"""Of the seconds that a study's attempts take, what later audits may take, the first included."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """An interval that a trial has pinned.

    Attributes:
        directory: Holds what is pinned, and goes when there is a verdict.
        from_path: The checkpoint to resume; None where the interval begins with the trial.
        problem: Why it could not be pinned; it is dropped at once.
    """

    from_step: int
    to_step: int
    to_epoch: int
    host: str
    directory: str
    from_path: str | None
    to_path: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class AuditClaim:
    """An interval that is now this worker's to compare.

    Attributes:
        key: Goes with the verdict, which is refused once another claim has the audit.
        params: As the trial stored them, and their distributions.
        fingerprint: What the attempt ran under that took the last checkpoint.
        tries: How often it was claimed, this time included.
        epochs: How many the trial trains for, where it was extended; None for the definition's.
    """

    id: int
    key: str
    study: str
    trial: int
    attempt: int
    pinned: Pinned
    params: Mapping[str, CategoricalChoice]
    distributions: Mapping[str, Distribution]
    fingerprint: Mapping[str, Any] | None
    tries: int
    epochs: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request for a claim; see `Audits.claim`."""

    worker_key: str
    host: str
    key: str
    lease_seconds: float
    first_only: bool
    unbounded: bool
    waited: float


def is_any_undecided(connection: Connection, name: str) -> bool:
    """Return whether any interval of the study has no verdict yet."""
    found = connection.scalar(
        sa.select(Audit.id)
        .join(Trial, Trial.id == Audit.trial_id)
        .where(Trial.study_id == find_study(connection, name).id, undecided())
        .limit(1)
    )
    return found is not None


def claim(connection: Connection, name: str, wanted: Wanted) -> AuditClaim | None:
    study = find_study(connection, name)
    mine = connection.execute(
        sa.select(Audit).where(Audit.claim_key == wanted.key, undecided())
    ).first()
    if mine is not None:
        return _read_claim(connection, study, mine)
    for row in _claimable(connection, study.id, wanted):
        taken = connection.execute(
            sa.update(Audit)
            .where(
                Audit.id == row.id,
                undecided(),
                Audit.claim_key.is_not_distinct_from(row.claim_key),
            )
            .values(worker_key=wanted.worker_key, claim_key=wanted.key, tries=Audit.tries + 1)
        )
        if taken.rowcount == 1:
            found = connection.execute(sa.select(Audit).where(Audit.id == row.id)).one()
            return _read_claim(connection, study, found)
    return None


def decide(
    connection: Connection,
    claim: AuditClaim,
    outcome: AuditOutcome,
    seconds: float,
    report: Mapping[str, Any],
) -> None:
    written = connection.execute(
        sa.update(Audit)
        .where(held_by(claim))
        .values(
            outcome=outcome,
            seconds=seconds,
            report=json.dumps(report),
            decided_at=UtcNow(),
            worker_key=None,
        )
    )
    if written.rowcount == 1:
        return
    row = connection.execute(
        sa.select(Audit.claim_key, Audit.outcome).where(Audit.id == claim.id)
    ).first()
    if row is not None and (row.claim_key, row.outcome) == (claim.key, outcome):
        return
    msg = (
        f"the audit of trial {claim.trial} from step {claim.pinned.from_step} to "
        f"{claim.pinned.to_step} was given to another worker, or has its verdict; this one's is "
        "refused"
    )
    raise SupersededError(msg)


def drop_rest(connection: Connection, study: str, host: str, reason: str) -> tuple[str, ...]:
    dropped = connection.execute(
        sa.update(Audit)
        .where(
            Audit.trial_id.in_(trials_of(find_study(connection, study).id)),
            Audit.host == host,
            Audit.worker_key.is_(None),
            undecided(),
        )
        .values(outcome="dropped", decided_at=UtcNow(), report=json.dumps({"message": reason}))
        .returning(Audit.directory)
    )
    return tuple(dropped.scalars())


def _claimable(connection: Connection, study_id: int, wanted: Wanted) -> Sequence[AnyRow]:
    rows = connection.execute(
        sa.select(
            Audit.id,
            Audit.claim_key,
            Audit.worker_key,
            (Audit.created_at <= UtcAfter(-wanted.waited)).label("waited"),
            Trial.audited,
            *(getattr(Worker, n).label(n) for n in ("host", "boot_id", "pid", "started")),
            Worker.left_at,
            (Worker.lease_until < UtcNow()).label("ended"),
        )
        .join(Trial, Trial.id == Audit.trial_id)
        .outerjoin(Worker, Worker.key == Audit.worker_key)
        .where(Audit.trial_id.in_(trials_of(study_id)), undecided(), Audit.host == wanted.host)
        .order_by(sa.case((Trial.audited == "first", 0), else_=1), Audit.id)
    ).all()
    if not rows:
        return ()
    judges = was_there(connection, wanted.worker_key, wanted.lease_seconds)
    free = [row for row in rows if _is_free(row, judges=judges)]
    first = [row for row in free if row.audited == "first"]
    if wanted.first_only:
        return first
    if wanted.unbounded:
        return free
    later = [row for row in free if row.audited != "first" and row.waited]
    if later and not _fits(connection, study_id):
        later = []
    return [*first, *later]


def _is_free(row: AnyRow, *, judges: bool) -> bool:
    """Return whether the interval is unclaimed: it was given back, or its worker is gone."""
    if row.worker_key is None or row.host is None or row.left_at is not None:
        return True
    gone = is_gone(ProcessIdentity(row.host, row.boot_id, row.pid, row.started))
    return gone is True or (bool(row.ended) and judges)


def _fits(connection: Connection, study_id: int) -> bool:
    """Return whether one more audit of average length stays within the audits' share of the study's time."""
    audits, attempts, count = seconds_of(connection, study_id)
    expected = audits / count if count else 0.0
    return audits + expected <= _SHARE * attempts


def seconds_of(connection: Connection, study_id: int) -> tuple[float, float, int]:
    audits, count = connection.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(Audit.seconds), 0.0), sa.func.count(Audit.seconds)
        ).where(Audit.trial_id.in_(trials_of(study_id)))
    ).one()
    rows = connection.execute(
        sa.select(
            Attempt.started_at, sa.func.coalesce(Attempt.ended_at, UtcNow()).label("until")
        ).where(Attempt.trial_id.in_(trials_of(study_id)))
    ).all()
    attempts = sum((row.until - row.started_at).total_seconds() for row in rows)
    return float(audits or 0.0), float(attempts), int(count)


def _read_claim(connection: Connection, study: AnyRow, row: AnyRow) -> AuditClaim:
    trial = connection.execute(sa.select(Trial).where(Trial.id == row.trial_id)).one()
    fingerprint = connection.scalar(
        sa.select(Attempt.fingerprint).where(
            Attempt.trial_id == row.trial_id, Attempt.number == row.attempt
        )
    )
    stored = optuna_rows.parameters(connection, (trial.optuna_trial_id,))
    parameters = stored.get(trial.optuna_trial_id, {})
    return AuditClaim(
        id=row.id,
        key=row.claim_key,
        study=study.name,
        trial=trial.number,
        attempt=row.attempt,
        pinned=Pinned(
            row.from_step,
            row.to_step,
            row.to_epoch,
            row.host,
            row.directory,
            row.from_path,
            row.to_path,
        ),
        params={name: p.value for name, p in parameters.items()},
        distributions={name: p.distribution for name, p in parameters.items()},
        fingerprint=None if fingerprint is None else json.loads(fingerprint),
        tries=row.tries,
        epochs=trial.epochs,
    )


def held_by(claim: AuditClaim) -> sa.ColumnElement[bool]:
    """Return the condition that the audit is still held by ``claim`` and has no verdict."""
    return sa.and_(Audit.id == claim.id, Audit.claim_key == claim.key, undecided())


def undecided() -> sa.ColumnElement[bool]:
    return Audit.outcome.is_(None)


def count_of(trial_id: Any) -> sa.ScalarSelect[int]:
    """Return the number of intervals of a trial, as a subquery."""
    return (
        sa.select(sa.func.count())
        .select_from(Audit)
        .where(Audit.trial_id == trial_id)
        .correlate(Trial.__table__)
        .scalar_subquery()
    )
