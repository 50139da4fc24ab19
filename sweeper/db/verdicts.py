"""Verdicts of audits and of `sweeper verify`, and evaluations of checkpoints on held-out data.

Verdicts of `sweeper verify` are added and never changed. An audit of the same interval, and an evaluation of
the same checkpoint on the same data, replace the earlier one. The path of a checkpoint is only in its own
row, because it may change. Where there is no such study, or no such trial has started, an UnknownStudyError is
raised.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import (
    find_study,
    find_trial,
    lock_study,
    trials_of,
)
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Audit,
    Evaluation,
    Study,
    Trial,
    UtcNow,
    Verdict,
    replace_row,
)
from sweeper.errors import SupersededError
from sweeper.records.exactness import AuditedDifference, AuditRecord, Exactness


def record_verdict(
    connection: Connection, study: str, number: int, report: Mapping[str, Any]
) -> None:
    """Add a verdict on a trial, dated by the database's clock.

    ``report`` is that of ``sweeper verify --json``; its fields of `VerificationRecord` have separate columns.
    """
    columns = ("mode", "verdict", "epoch", "step", "variable")
    connection.execute(
        sa.insert(Verdict).values(
            trial_id=find_trial(connection, find_study(connection, study), number).id,
            checked_at=UtcNow(),
            report=dict(report),
            **{name: report.get(name) for name in columns},
        )
    )


def fingerprints(
    connection: Connection, study: str
) -> dict[int, tuple[tuple[int, Mapping[str, Any]], ...]]:
    """Return, by trial, each attempt's number and environment fingerprint, if that is known."""
    rows = connection.execute(
        sa.select(Trial.number.label("trial"), Attempt.number, Attempt.fingerprint)
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(
            Trial.study_id == find_study(connection, study).id,
            Attempt.fingerprint.is_not(None),
        )
        .order_by(Trial.number, Attempt.number)
    )
    by_trial: defaultdict[int, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for trial, attempt, fingerprint in rows:
        by_trial[trial].append((attempt, fingerprint))
    return {trial: tuple(attempts) for trial, attempts in by_trial.items()}


def exactness(connection: Connection, study: str) -> Exactness:
    return read_exactness(connection, find_study(connection, study))


def read_exactness(connection: Connection, study: AnyRow) -> Exactness:
    """Count a study's verdicts, and find the first difference."""
    of_study = Audit.trial_id.in_(trials_of(study.id))
    counted = sa.select(Audit.outcome, sa.func.count()).where(of_study).group_by(Audit.outcome)
    counts = {row[0]: int(row[1]) for row in connection.execute(counted)}
    first = connection.execute(
        sa.select(Audit, Trial.number)
        .join(Trial, Trial.id == Audit.trial_id)
        .where(of_study, Audit.outcome == "differs")
        .order_by(Audit.decided_at, Audit.id)
        .limit(1)
    ).first()
    identical = counts.get("identical", 0)
    difference = None
    if first is not None:
        difference = AuditedDifference(
            first.number,
            first.from_step,
            first.to_step,
            first.report["message"],
            first.report.get("advice", ""),
        )
    return Exactness(
        intervals=identical + counts.get("differs", 0),
        identical=identical,
        unaudited=_unaudited(study.definition),
        difference=difference,
        accepted=study.inexact_accepted_at is not None,
    )


def _unaudited(definition: Mapping[str, Any]) -> str | None:
    """Return the reason why a study is not audited, from its definition; None if it is audited."""
    if not definition.get("deterministic", True):
        return "not audited, because the study has deterministic=False"
    if definition.get("audit") == "off":
        return 'not audited (audit="off")'
    return None


def record_audit(  # noqa: PLR0917 - the columns of an audit
    connection: Connection,
    study: str,
    number: int,
    attempt: int,
    audit: AuditRecord,
    report: Mapping[str, Any],
) -> None:
    """Store an audit of a trial in place of an earlier one of the same interval.

    ``attempt`` wrote the interval's last checkpoint; if another one has started, the audit is refused.
    """
    trial = find_trial(connection, lock_study(connection, study), number)
    if trial.current_attempt != attempt:
        raise SupersededError(
            f"the audit of trial {number} from step {audit.from_step} to {audit.to_step} is of "
            f"attempt {attempt}, and attempt {trial.current_attempt} has begun; this verdict is refused"
        )
    replace_row(
        connection,
        Audit,
        {"trial_id": trial.id, "from_step": audit.from_step, "to_step": audit.to_step},
        outcome=audit.outcome,
        seconds=audit.seconds,
        decided_at=UtcNow(),
        report=dict(report),
    )


def accept_inexact(connection: Connection, study: str) -> None:
    """Record that differences of audits are accepted."""
    connection.execute(
        sa.update(Study)
        .where(Study.name == study, Study.inexact_accepted_at.is_(None))
        .values(inexact_accepted_at=UtcNow())
    )


def audit_costs(connection: Connection, study: str) -> tuple[float | None, float | None]:
    """Return the mean seconds of the study's audits and of its ended attempts; None without any."""
    ids = trials_of(find_study(connection, study).id)
    audit = connection.scalar(sa.select(sa.func.avg(Audit.seconds)).where(Audit.trial_id.in_(ids)))
    rows = connection.execute(
        sa.select(Attempt.started_at, Attempt.ended_at).where(
            Attempt.trial_id.in_(ids), Attempt.ended_at.is_not(None)
        )
    ).all()
    took = [(row.ended_at - row.started_at).total_seconds() for row in rows]
    return audit, sum(took) / len(took) if took else None


def record_evaluation(
    connection: Connection,
    study: str,
    number: int,
    *,
    step: int,
    epoch: int,
    digest: str,
    data: str,
    data_digest: str,
    metrics: Mapping[str, float],
) -> None:
    """Store an evaluation with the time of the database's clock; see `EvaluationRecord`."""
    trial = find_trial(connection, find_study(connection, study), number, lock=True)
    key = {"step": step, "digest": digest, "data": data, "data_digest": data_digest}
    replace_row(
        connection,
        Evaluation,
        {"trial_id": trial.id, **key},
        evaluated_at=UtcNow(),
        epoch=epoch,
        metrics=dict(metrics),
    )
