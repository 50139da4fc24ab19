"""Audits of a study: intervals to compare, claims on them by compare-and-set, and their results.

An interval is recorded by the attempt that pinned it, claimed by a worker that compares it, and
decided once. All of this is in the database, so any worker of the machine may take over from one
that is gone.

A claim is one update that names the previous claim, so two workers never have the same audit. A
verdict is one update that names its claim, so it is not written twice, nor by a disconnected
worker. After three claims without a verdict an audit is given up, because its process would be
killed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.attempts import lock_current
from sweeper.db.database import Statements, reading, writing
from sweeper.db.leases import was_there
from sweeper.db.studies import find_study, lock_study, trials_of
from sweeper.db.tables import AnyRow, Attempt, Audit, Study, Trial, UtcAfter, UtcNow, Worker
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditedDifference, AuditOutcome, AuditRecord, Exactness
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.processes import ProcessIdentity, is_gone


def read_exactness(connection: Connection, study: AnyRow) -> Exactness:
    """Count a study's verdicts, and find the first difference."""
    of_study = Audit.trial_id.in_(trials_of(study.id))
    counted = sa.select(Audit.outcome, sa.func.count()).where(of_study).group_by(Audit.outcome)
    counts = {row[0]: int(row[1]) for row in connection.execute(counted)}
    first = None
    if counts.get("differs"):
        first = connection.execute(
            sa.select(Audit, Trial.number)
            .join(Trial, Trial.id == Audit.trial_id)
            .where(of_study, Audit.outcome == "differs")
            .order_by(Audit.decided_at, Audit.id)
            .limit(1)
        ).one()
    alike = counts.get("alike", 0)
    return Exactness(
        intervals=alike + counts.get("differs", 0),
        alike=alike,
        pending=counts.get(None, 0),
        unaudited=_unaudited(json.loads(study.definition)),
        difference=None
        if first is None
        else AuditedDifference(
            first.number,
            first.from_step,
            first.to_step,
            _of(first.report, "message") or "it differs",
            _of(first.report, "advice") or "",
        ),
        accepted=study.inexact_accepted_at is not None,
    )


def audits_of_trials(
    connection: Connection, trial_ids: sa.Select[int]
) -> dict[int, list[AuditRecord]]:
    """Return each trial's intervals in order, by the trial's id."""
    found: dict[int, list[AuditRecord]] = {}
    for row in connection.execute(
        sa.select(Audit).where(Audit.trial_id.in_(trial_ids)).order_by(Audit.to_step, Audit.id)
    ):
        outcome = cast("AuditOutcome | None", row.outcome)
        found.setdefault(row.trial_id, []).append(
            AuditRecord(
                row.from_step, row.to_step, outcome, row.seconds, _of(row.report, "message")
            )
        )
    return found


def _unaudited(definition: Mapping[str, Any]) -> str | None:
    """Return the reason why a study is not audited, from its definition; None if it is audited."""
    if not definition.get("deterministic", True):
        return "not audited, because the study has deterministic=False"
    if definition.get("audit") == "off":
        return 'not audited (audit="off")'
    return None


def _of(report: str | None, key: str) -> str | None:
    return None if report is None else json.loads(report).get(key)


FIRST_INTERVALS = 2
"""Number of audited intervals of a study's first trial."""

MOST_TRIES = 3
"""Maximum number of claims of an audit."""

_SHARE = 0.03
"""Share of the seconds of a study's attempts that audits may take."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """An interval that a trial has pinned.

    Attributes:
        directory: Directory of the pinned checkpoints, which is deleted after the verdict.
        from_path: The checkpoint to resume; None if the interval begins with the trial.
        problem: The reason for which it could not be pinned; it is dropped at once.
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
    """An interval that this worker has claimed.

    Attributes:
        key: Key of the claim; the verdict is refused once another claim has the audit.
        params: The trial's parameters with their distributions.
        fingerprint: Environment of the attempt that wrote the last checkpoint.
        tries: Number of claims, including this one.
        epochs: The trial's number of epochs, if it was extended; None for the definition's.
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


def claim_audit(connection: Connection, name: str, wanted: Wanted) -> AuditClaim | None:
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


def _decide(
    connection: Connection,
    claim: AuditClaim,
    outcome: AuditOutcome,
    *,
    seconds: float,
    report: Mapping[str, Any] | None = None,
) -> None:
    """Store the verdict; storing the same one again has no effect.

    Raises:
        SupersededError: Another claim has the audit, or another verdict.
    """
    written = connection.execute(
        sa.update(Audit)
        .where(held_by(claim))
        .values(
            outcome=outcome,
            seconds=seconds,
            report=json.dumps(dict(report or {})),
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
        f"{claim.pinned.to_step} belongs to another worker, or has its verdict; this verdict is "
        "refused"
    )
    raise SupersededError(msg)


def _drop_rest(connection: Connection, study: str, host: str, reason: str) -> tuple[str, ...]:
    """Drop intervals on ``host`` that will not be compared; return their directories."""
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
    if later:
        audits, attempts, count = seconds_of(connection, study_id)
        # One more audit, of average length, must fit into the audits' share of the study's time.
        if audits + (audits / count if count else 0.0) > _SHARE * attempts:
            later = []
    return [*first, *later]


def _is_free(row: AnyRow, *, judges: bool) -> bool:
    """Return whether the interval has no claim: it was released, or its worker is gone."""
    if row.worker_key is None or row.host is None or row.left_at is not None:
        return True
    gone = is_gone(ProcessIdentity(row.host, row.boot_id, row.pid, row.started))
    return gone is True or (bool(row.ended) and judges)


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


WhichIntervals = Literal["first", "drawn", "all", "none"]
"""Selection of a trial's audited intervals: the first ones, a random one, all, or none."""


def _plan(
    connection: Connection, study: str, number: int, *, drawn: bool
) -> tuple[WhichIntervals, int]:
    """Choose the audited intervals of a trial, once for all of its attempts.

    The first trial is audited; if it failed too early, the next one to begin. If the trial is not the
    first, one of its intervals is audited if it is ``drawn``.

    Returns:
        The selection, and the number of its recorded intervals.
    """
    study_id = lock_study(connection, study).id
    trial = connection.execute(
        sa.select(Trial).where(Trial.study_id == study_id, Trial.number == number)
    ).one()
    which = trial.audited
    if which is None:
        first = connection.scalar(sa.select(Trial.id).where(_has_first(study_id)).limit(1))
        if first is None:
            first = _begun_first(connection, study_id)
            connection.execute(sa.update(Trial).where(Trial.id == first).values(audited="first"))
        which = "first" if first == trial.id else "drawn" if drawn else "none"
        connection.execute(sa.update(Trial).where(Trial.id == trial.id).values(audited=which))
    count = connection.scalar(sa.select(count_of(trial.id)))
    return cast("WhichIntervals", which), int(count or 0)


def _has_first(study_id: int) -> sa.ColumnElement[bool]:
    """Return the condition for the trial with the first audited intervals, unless it failed too early."""
    enough = count_of(Trial.id) >= FIRST_INTERVALS
    return sa.and_(
        Trial.study_id == study_id,
        Trial.audited == "first",
        sa.or_(Trial.result.is_(None), Trial.result != "failed", enough),
    )


def _begun_first(connection: Connection, study_id: int) -> int | None:
    """Return the lowest running trial without a plan; it may have begun before the calling one."""
    return connection.scalar(
        sa.select(Trial.id)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(
            Trial.study_id == study_id,
            Trial.audited.is_(None),
            Trial.result.is_(None),
            Attempt.outcome.is_(None),
        )
        .order_by(Trial.number)
        .limit(1)
    )


def _add(connection: Connection, token: int, pinned: Pinned) -> bool:
    """Record an interval for the attempt ``token``; return whether it is wanted.

    An interval that another attempt has recorded is not wanted.

    Raises:
        SupersededError: The attempt is no longer the trial's current one.
    """
    trial = lock_current(connection, token)
    known = connection.scalar(
        sa.select(Audit.directory).where(
            Audit.trial_id == trial.id,
            Audit.from_step == pinned.from_step,
            Audit.to_step == pinned.to_step,
        )
    )
    if known is not None:
        return bool(known == pinned.directory and pinned.problem is None)
    problem = pinned.problem
    connection.execute(
        sa.insert(Audit).values(
            trial_id=trial.id,
            attempt=trial.attempt,
            from_step=pinned.from_step,
            to_step=pinned.to_step,
            to_epoch=pinned.to_epoch,
            host=pinned.host,
            directory=pinned.directory,
            from_path=pinned.from_path,
            to_path=pinned.to_path,
            created_at=UtcNow(),
            outcome=None if problem is None else "dropped",
            decided_at=None if problem is None else UtcNow(),
            report=None if problem is None else json.dumps({"message": problem}),
        )
    )
    return problem is None


def _release(connection: Connection, claim: AuditClaim) -> None:
    """Release an unfinished audit, unless another worker has it."""
    connection.execute(sa.update(Audit).where(held_by(claim)).values(worker_key=None))


def _is_settled(connection: Connection, study: str) -> bool:
    """Return whether the study has all its first intervals."""
    first = _has_first(find_study(connection, study).id)
    found = sa.select(Trial.id).where(first, Trial.result.is_not(None)).limit(1)
    return connection.scalar(found) is not None


def _directories_in_use(connection: Connection, study: str) -> frozenset[str]:
    """Return the directories of the intervals that have no verdict yet."""
    of_study = Audit.trial_id.in_(trials_of(find_study(connection, study).id))
    return frozenset(connection.scalars(sa.select(Audit.directory).where(of_study, undecided())))


def _accept_inexact(connection: Connection, study: str) -> None:
    """Record that differences of audits are accepted."""
    connection.execute(
        sa.update(Study)
        .where(Study.name == study, Study.inexact_accepted_at.is_(None))
        .values(inexact_accepted_at=UtcNow())
    )


def _share(connection: Connection, study: str) -> tuple[float, float]:
    """Return the seconds of the study's audits, and of its attempts."""
    return seconds_of(connection, find_study(connection, study).id)[:2]


def _exactness(connection: Connection, study: str) -> Exactness:
    """Return the result of the study's audits.

    Raises:
        UnknownStudyError: There is no such study.
    """
    return read_exactness(connection, find_study(connection, study))


class Audits(Statements):
    """A study's audits. Every method is one transaction; see `Repository` for errors."""

    plan = writing(_plan)
    add = writing(_add)
    decide = writing(_decide)
    release = writing(_release)
    drop_rest = writing(_drop_rest)
    accept_inexact = writing(_accept_inexact)
    is_settled = reading(_is_settled)
    directories_in_use = reading(_directories_in_use)
    exactness = reading(_exactness)
    share = reading(_share)

    def claim(
        self,
        study: str,
        *,
        worker_key: str,
        host: str,
        key: str,
        lease_seconds: float = 60.0,
        first_only: bool = False,
        unbounded: bool = False,
        waited: float = 0.0,
    ) -> AuditClaim | None:
        """Claim the oldest interval that can be compared on this machine, if there is one.

        Args:
            study: The study's name.
            worker_key: The key with which the worker joined the study.
            host: The machine's name, because pinned files of other machines cannot be read.
            key: Key of the claim, 32 characters; a repeated call with it returns the same claim.
            lease_seconds: A lease's length.
            first_only: Whether to claim only intervals for which other trials wait.
            unbounded: Whether to ignore the limit on the audits' share of the study's time.
            waited: Minimum age in seconds of other intervals than the first ones.
        """
        wanted = Wanted(worker_key, host, key, lease_seconds, first_only, unbounded, waited)
        # Most calls find nothing, and reading does not wait for other writers.
        if not self.database.read(lambda c: is_any_undecided(c, study)):
            return None
        return self.database.write(lambda c: claim_audit(c, study, wanted))
