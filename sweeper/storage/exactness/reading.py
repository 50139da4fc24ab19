"""Audit results of a study and its trials, read for display."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.records.exactness import AuditedDifference, AuditOutcome, AuditRecord, Exactness
from sweeper.storage.queries.studies import trials_of
from sweeper.storage.tables import AnyRow, Audit, Trial


def read_exactness(connection: Connection, study: AnyRow) -> Exactness:
    """Count a study's verdicts, and find the first that is a difference."""
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
        return "not audited, since the study has deterministic=False and promises none"
    if definition.get("audit") == "off":
        return 'not audited (audit="off")'
    return None


def _of(report: str | None, key: str) -> str | None:
    return None if report is None else json.loads(report).get(key)
