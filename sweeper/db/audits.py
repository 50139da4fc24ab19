"""Verdicts of audits: a row for each audited interval, and what they say together of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import find_study, lock_study, trials_of
from sweeper.db.tables import AnyRow, Attempt, Audit, Study, Trial, UtcNow
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditedDifference, AuditOutcome, AuditRecord, Exactness


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """Verdict to store.

    Attributes:
        attempt: The attempt that wrote the interval's last checkpoint.
        seconds: Total duration of the audit's replays.
        report: What differs, or why there is no verdict; empty if it is alike.
    """

    trial: int
    attempt: int
    from_step: int
    to_step: int
    outcome: AuditOutcome
    seconds: float
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditCosts:
    """Mean seconds of a study's audits and of its attempts; None without any."""

    audit: float | None
    attempt: float | None


def exactness(connection: Connection, study: str) -> Exactness:
    """Return the result of the study's audits.

    Raises:
        UnknownStudyError: There is no such study.
    """
    return read_exactness(connection, find_study(connection, study))


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
        unaudited=_unaudited(study.definition),
        difference=None
        if first is None
        else AuditedDifference(
            first.number,
            first.from_step,
            first.to_step,
            first.report.get("message") or "it differs",
            first.report.get("advice") or "",
        ),
        accepted=study.inexact_accepted_at is not None,
    )


def audits_of_trials(
    connection: Connection, trial_ids: sa.Select[int]
) -> dict[int, list[AuditRecord]]:
    """Return each trial's audited intervals in order, by the trial's id."""
    found: dict[int, list[AuditRecord]] = {}
    for row in connection.execute(
        sa.select(Audit).where(Audit.trial_id.in_(trial_ids)).order_by(Audit.to_step, Audit.id)
    ):
        outcome = cast("AuditOutcome", row.outcome)
        message = row.report.get("message")
        found.setdefault(row.trial_id, []).append(
            AuditRecord(row.from_step, row.to_step, outcome, row.seconds, message)
        )
    return found


def _unaudited(definition: Mapping[str, Any]) -> str | None:
    """Return the reason why a study is not audited, from its definition; None if it is audited."""
    if not definition.get("deterministic", True):
        return "not audited, because the study has deterministic=False"
    if definition.get("audit") == "off":
        return 'not audited (audit="off")'
    return None


def record_audit(connection: Connection, study: str, verdict: AuditVerdict) -> None:
    """Store a verdict in place of an earlier one on the same interval.

    Raises:
        SupersededError: Another attempt at the trial has begun, so the verdict is not of its result.
    """
    trial = connection.execute(
        sa.select(Trial.id, Trial.current_attempt).where(
            Trial.study_id == lock_study(connection, study).id, Trial.number == verdict.trial
        )
    ).one()
    if trial.current_attempt != verdict.attempt:
        msg = (
            f"the audit of trial {verdict.trial} from step {verdict.from_step} to "
            f"{verdict.to_step} is of attempt {verdict.attempt}, and attempt "
            f"{trial.current_attempt} has begun; this verdict is refused"
        )
        raise SupersededError(msg)
    interval = {"from_step": verdict.from_step, "to_step": verdict.to_step}
    same = [getattr(Audit, name) == step for name, step in interval.items()]
    connection.execute(sa.delete(Audit).where(Audit.trial_id == trial.id, *same))
    connection.execute(
        sa.insert(Audit).values(
            trial_id=trial.id,
            **interval,
            outcome=verdict.outcome,
            seconds=verdict.seconds,
            decided_at=UtcNow(),
            report=dict(verdict.report),
        )
    )


def accept_inexact(connection: Connection, study: str) -> None:
    """Record that differences of audits are accepted."""
    connection.execute(
        sa.update(Study)
        .where(Study.name == study, Study.inexact_accepted_at.is_(None))
        .values(inexact_accepted_at=UtcNow())
    )


def audit_costs(connection: Connection, study: str) -> AuditCosts:
    """Return what the study's audits and its ended attempts took on average."""
    ids = trials_of(find_study(connection, study).id)
    audit = connection.scalar(sa.select(sa.func.avg(Audit.seconds)).where(Audit.trial_id.in_(ids)))
    rows = connection.execute(
        sa.select(Attempt.started_at, Attempt.ended_at).where(
            Attempt.trial_id.in_(ids), Attempt.ended_at.is_not(None)
        )
    ).all()
    took = [(row.ended_at - row.started_at).total_seconds() for row in rows]
    return AuditCosts(audit, sum(took) / len(took) if took else None)
