"""Read what was decided at rungs, in a fixed number of queries."""

from __future__ import annotations

from collections import defaultdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.records.rungs import ComparedTrial, RungDecision, RungRecord
from sweeper.storage.tables import Trial, aware
from sweeper.storage.trial_tables.rungs import Rung, RungMember


def decisions(connection: Connection, study_id: int) -> dict[int, RungDecision]:
    """Return the study's decided rungs by their ids, in the order of their rounds and epochs."""
    compared: defaultdict[int, list[ComparedTrial]] = defaultdict(list)
    for row in connection.execute(
        sa.select(RungMember.rung_id, RungMember.value, RungMember.promoted, Trial.number)
        .join(Trial, Trial.id == RungMember.trial_id)
        .where(Trial.study_id == study_id, RungMember.rung_id.is_not(None))
        .order_by(Trial.number)
    ):
        compared[row.rung_id].append(ComparedTrial(row.number, row.value, row.promoted))
    return {
        rung.id: RungDecision(
            rung.bracket,
            rung.first,
            rung.epochs,
            aware(rung.decided_at),
            tuple(compared[rung.id]),
        )
        for rung in connection.execute(
            sa.select(Rung).where(Rung.study_id == study_id).order_by(Rung.first, Rung.epochs)
        )
    }


def rungs_of_trials(
    connection: Connection, study_id: int, trial_ids: sa.Select[int]
) -> dict[int, list[RungRecord]]:
    """Return the rungs that trials have come to, by the trial's id, in order."""
    members = connection.execute(
        sa.select(RungMember).where(RungMember.trial_id.in_(trial_ids)).order_by(RungMember.epochs)
    ).all()
    decided = decisions(connection, study_id) if members else {}
    found: defaultdict[int, list[RungRecord]] = defaultdict(list)
    for row in members:
        decision = None if row.rung_id is None else decided[row.rung_id]
        found[row.trial_id].append(RungRecord(row.epochs, row.value, row.promoted, decision))
    return found
