"""Verdicts of audits and of `sweeper verify`, and evaluations of checkpoints on held-out data.

Verdicts of `sweeper verify` are added and never changed. An audit of the same interval, and an evaluation of
the same checkpoint on the same data, replace the earlier one. The path of a checkpoint is only in its own
row, because it may change. Where there is no such study, or no such trial has begun, an UnknownStudyError is
raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import (
    StudyRow,
    changes_between,
    find_study,
    find_trial_id,
    lock_study,
    row_of,
    trials_of,
)
from sweeper.db.tables import (
    AnyRow,
    Attempt,
    Audit,
    Checkpoint,
    Evaluation,
    Study,
    Trial,
    UtcNow,
    Verdict,
)
from sweeper.errors import SupersededError
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.exactness import (
    AuditedDifference,
    AuditOutcome,
    AuditRecord,
    Exactness,
    VerificationMode,
    VerificationRecord,
    VerificationVerdict,
)


def latest_verdicts(
    connection: Connection, trial_ids: sa.Select[int]
) -> dict[int, VerificationRecord]:
    """Return the newest verdict on each of the trials that has one, by the trial's id."""
    newest = (
        sa.select(sa.func.max(Verdict.id))
        .where(Verdict.trial_id.in_(trial_ids))
        .group_by(Verdict.trial_id)
    )
    rows = connection.execute(sa.select(Verdict).where(Verdict.id.in_(newest)))
    return {
        row.trial_id: VerificationRecord(
            checked_at=row.checked_at,
            mode=cast("VerificationMode", row.mode),
            verdict=cast("VerificationVerdict", row.verdict),
            epoch=row.epoch,
            step=row.step,
            variable=row.variable,
            report=row.report,
        )
        for row in rows
    }


def record_verdict(
    connection: Connection, study: str, number: int, report: Mapping[str, Any]
) -> None:
    """Add a verdict on a trial, dated by the database's clock.

    ``report`` is that of ``sweeper verify --json``; what `VerificationRecord` has of it gets columns of its own.
    """
    columns = ("mode", "verdict", "epoch", "step", "variable")
    connection.execute(
        sa.insert(Verdict).values(
            trial_id=find_trial_id(connection, study, number),
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
    found: defaultdict[int, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for trial, attempt, fingerprint in rows:
        found[trial].append((attempt, fingerprint))
    return {trial: tuple(attempts) for trial, attempts in found.items()}


def definition_differences(connection: Connection, row: StudyRow) -> tuple[str, ...]:
    """Return the differences between ``row``'s definition and the stored one, one phrase each."""
    stored = row_of(find_study(connection, row.name))
    return tuple(changes_between(stored, row))


def exactness(connection: Connection, study: str) -> Exactness:
    """Return the result of the study's audits."""
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
            first.report["message"],
            first.report.get("advice", ""),
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


def record_audit(  # noqa: PLR0917 - the columns of an audit
    connection: Connection,
    study: str,
    number: int,
    attempt: int,
    audit: AuditRecord,
    report: Mapping[str, Any],
) -> None:
    """Store an audit of a trial in place of an earlier one of the same interval.

    ``attempt`` wrote the interval's last checkpoint; ``report`` has what differs, or why there is no verdict.

    Raises:
        SupersededError: Another attempt at the trial has begun, so the verdict is not of its result.
    """
    trial = connection.execute(
        sa.select(Trial.id, Trial.current_attempt).where(
            Trial.study_id == lock_study(connection, study).id, Trial.number == number
        )
    ).one()
    if trial.current_attempt != attempt:
        msg = (
            f"the audit of trial {number} from step {audit.from_step} to {audit.to_step} is of "
            f"attempt {attempt}, and attempt {trial.current_attempt} has begun; this verdict is refused"
        )
        raise SupersededError(msg)
    interval = {"from_step": audit.from_step, "to_step": audit.to_step}
    same = [getattr(Audit, name) == step for name, step in interval.items()]
    connection.execute(sa.delete(Audit).where(Audit.trial_id == trial.id, *same))
    connection.execute(
        sa.insert(Audit).values(
            trial_id=trial.id,
            **interval,
            outcome=audit.outcome,
            seconds=audit.seconds,
            decided_at=UtcNow(),
            report=dict(report),
        )
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


def evaluations_of_trials(
    connection: Connection, trial_ids: sa.Select[int]
) -> dict[int, list[EvaluationRecord]]:
    """Return each trial's evaluations, by data set and step, by the trial's id."""
    paths = {
        (row.trial_id, row.step, row.digest): row.path
        for row in connection.execute(
            sa.select(Checkpoint.trial_id, Checkpoint.step, Checkpoint.digest, Checkpoint.path)
            .where(Checkpoint.trial_id.in_(trial_ids))
            .order_by(Checkpoint.id)
        )
    }
    found: dict[int, list[EvaluationRecord]] = {}
    for row in connection.execute(
        sa.select(Evaluation, Trial.number)
        .join(Trial, Trial.id == Evaluation.trial_id)
        .where(Evaluation.trial_id.in_(trial_ids))
        .order_by(Evaluation.data, Evaluation.data_digest, Evaluation.step, Evaluation.id)
    ):
        found.setdefault(row.trial_id, []).append(
            EvaluationRecord(
                trial=row.number,
                step=row.step,
                epoch=row.epoch,
                digest=row.digest,
                data=row.data,
                data_digest=row.data_digest,
                metrics=row.metrics,
                evaluated_at=row.evaluated_at,
                path=paths.get((row.trial_id, row.step, row.digest)),
            )
        )
    return found


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
    trial_id = find_trial_id(connection, study, number, lock=True)
    key = {"step": step, "digest": digest, "data": data, "data_digest": data_digest}
    same = [getattr(Evaluation, column) == value for column, value in key.items()]
    connection.execute(sa.delete(Evaluation).where(Evaluation.trial_id == trial_id, *same))
    connection.execute(
        sa.insert(Evaluation).values(
            trial_id=trial_id,
            evaluated_at=UtcNow(),
            epoch=epoch,
            metrics=dict(metrics),
            **key,
        )
    )
