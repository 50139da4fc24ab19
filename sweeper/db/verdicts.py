"""Verdicts of `sweeper verify`, and the other reads of a verification.

Verdicts are added and never changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.studies import StudyRow, changes_between, find_study, find_trial_id, row_of
from sweeper.db.tables import AnyRow, Attempt, Trial, UtcNow, Verdict
from sweeper.records.results import VerificationMode, VerificationRecord, VerificationVerdict


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
    return {row.trial_id: _verdict(row) for row in rows}


def record_verdict(  # noqa: PLR0917 - the columns of a verdict
    connection: Connection,
    study: str,
    number: int,
    mode: VerificationMode,
    verdict: VerificationVerdict,
    report: Mapping[str, Any],
    *,
    epoch: int | None = None,
    step: int | None = None,
    variable: str | None = None,
) -> None:
    """Add a verdict on a trial, dated by the database's clock; see `VerificationRecord`.

    Raises:
        UnknownStudyError: There is no such study, or no such trial has begun in it.
    """
    connection.execute(
        sa.insert(Verdict).values(
            trial_id=find_trial_id(connection, study, number),
            checked_at=UtcNow(),
            mode=mode,
            verdict=verdict,
            epoch=epoch,
            step=step,
            variable=variable,
            report=dict(report),
        )
    )


def verdicts_of_trial(
    connection: Connection, study: str, number: int
) -> tuple[VerificationRecord, ...]:
    """Return every verdict on a trial, the oldest first.

    Raises:
        UnknownStudyError: There is no such study, or no such trial has begun in it.
    """
    chosen = Verdict.trial_id == find_trial_id(connection, study, number)
    rows = connection.execute(sa.select(Verdict).where(chosen).order_by(Verdict.id))
    return tuple(_verdict(row) for row in rows)


def fingerprints(
    connection: Connection, study: str
) -> dict[int, tuple[tuple[int, Mapping[str, Any]], ...]]:
    """Return, by trial, each attempt's number and environment fingerprint, if that is known.

    Raises:
        UnknownStudyError: There is no such study.
    """
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
    """Return the differences between ``row``'s definition and the stored one, one phrase each.

    Raises:
        UnknownStudyError: There is no such study.
    """
    stored = row_of(find_study(connection, row.name))
    return tuple(changes_between(stored, row))


def _verdict(row: AnyRow) -> VerificationRecord:
    return VerificationRecord(
        checked_at=row.checked_at,
        mode=cast("VerificationMode", row.mode),
        verdict=cast("VerificationVerdict", row.verdict),
        epoch=row.epoch,
        step=row.step,
        variable=row.variable,
        report=row.report,
    )
