"""Observations for a sampler under a budget: values of trials after the first rung's epochs.

Every trial that does not fail before has such a value, whatever bracket it is in and whatever becomes
of it later, so that what is seen depends on no decision and on nobody's pace, and all values are of
equally many epochs.
"""

from __future__ import annotations

import json
import math

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.budgets import RungSchedule
from sweeper.declared.searching import value_at
from sweeper.search.spaces import Observation
from sweeper.storage.queries import optuna_rows
from sweeper.storage.tables import AnyRow, Epoch, Trial
from sweeper.storage.trial_tables.branches import is_beside


def seen_at_first_rung(
    connection: Connection, study: AnyRow, schedule: RungSchedule, number: int
) -> tuple[Observation, ...]:
    """Return the trials numbered below ``number`` that have come so far, or are over, in order."""
    chosen = sa.and_(Trial.study_id == study.id, Trial.number < number, ~is_beside())
    rows = connection.execute(
        sa.select(Trial.id, Trial.number, Trial.optuna_trial_id, Trial.result)
        .where(chosen)
        .order_by(Trial.number)
    ).all()
    reported: dict[int, dict[int, float]] = {}
    reached = set()
    for epoch in connection.execute(
        sa.select(Epoch)
        .where(
            Epoch.trial_id.in_(sa.select(Trial.id).where(chosen)), Epoch.epoch < schedule.rungs[0]
        )
        .order_by(Epoch.epoch)
    ):
        value = json.loads(epoch.metrics).get(study.objective)
        if value is not None:
            reported.setdefault(epoch.trial_id, {})[epoch.epoch] = value
        if epoch.epoch == schedule.rungs[0] - 1:
            reached.add(epoch.trial_id)
    parameters = optuna_rows.parameters(connection, sa.select(Trial.optuna_trial_id).where(chosen))
    at = json.loads(study.definition).get("at", "last")
    found = []
    for row in rows:
        if row.id not in reached and row.result is None:
            continue
        values = reported.get(row.id, {})
        value = value_at(list(values.values()), at, study.direction) if values else math.nan
        failed = not math.isfinite(value) or (row.id not in reached and row.result == "failed")
        own = parameters.get(row.optuna_trial_id, {})
        found.append(
            Observation(
                number=row.number,
                state="failed" if failed else "complete",
                params={n: p.value for n, p in own.items()},
                distributions={n: p.distribution for n, p in own.items()},
                value=None if failed else value,
                intermediate={} if failed else values,
            )
        )
    return tuple(found)
