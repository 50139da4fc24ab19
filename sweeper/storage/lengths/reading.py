"""Results of trials at each length for display, and at the first length for the search."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.searching import At, Objective, value_at
from sweeper.records.lengths import LengthRecord
from sweeper.search.spaces import Observation
from sweeper.storage.queries.leading import objectives_of
from sweeper.storage.queries.progress import values_by_name
from sweeper.storage.tables import AnyRow, Epoch, Trial, aware
from sweeper.storage.trial_tables.lengths import Length


def was_extended() -> sa.Exists:
    """Return the condition that the trial of the enclosing query ended at an earlier length."""
    return sa.exists().where(Length.trial_id == Trial.id).correlate(Trial.__table__)


def lengths_of_trials(
    connection: Connection, trial_ids: sa.Select[int], objectives: Sequence[Objective]
) -> dict[int, list[LengthRecord]]:
    """Return what each trial gave at the lengths that it was extended from, by its id."""
    found: dict[int, list[LengthRecord]] = {}
    for row in connection.execute(
        sa.select(Length).where(Length.trial_id.in_(trial_ids)).order_by(Length.epochs)
    ):
        values = tuple(json.loads(row.objectives))
        record = LengthRecord(
            epochs=row.epochs,
            trained=row.trained,
            state=row.result,
            value=next(iter(values), None),
            digest=row.digest,
            at=None if row.ended_at is None else aware(row.ended_at),
            values=values_by_name(objectives, values or None),
        )
        found.setdefault(row.trial_id, []).append(record)
    return found


def at_first_length(
    connection: Connection,
    study: AnyRow,
    trials: Sequence[AnyRow],
    observed: Sequence[Observation],
) -> tuple[Observation, ...]:
    """Return the observations of trials for the search: each as it was at the study's first length.

    So an extension changes nothing that is drawn afterwards: a trial that trained on, one that was
    given more epochs from its beginning, and one that was not extended, all look alike to it.

    Args:
        connection: In a transaction.
        study: Its columns.
        trials: Those of its trials, in order.
        observed: The same trials, as they are now.
    """
    if all(trial.epochs is None for trial in trials):
        return tuple(observed)
    first = int(json.loads(study.definition)["epochs"])
    longer = {trial.id for trial in trials if trial.epochs is not None and trial.epochs > first}
    if not longer:
        return tuple(observed)
    kept = _first_kept(connection, longer)
    epochs = _epochs_until(connection, longer, first)
    found = []
    for trial, seen in zip(trials, observed, strict=True):
        if trial.id not in longer:
            found.append(seen)
            continue
        row, reported = kept.get(trial.id), epochs.get(trial.id, {})
        if row is not None:
            ended = _ended_as(seen, row.result, tuple(json.loads(row.objectives)))
            end = row.trained
        elif len(reported) == first:
            ended, end = _computed(study, seen, reported), first
        else:
            # It ended before the first length was over: there it ended as it has now.
            ended, end = seen, first
        shown = {epoch: value for epoch, value in seen.intermediate.items() if epoch < end}
        found.append(replace(ended, intermediate=shown))
    return tuple(found)


def _first_kept(connection: Connection, trials: set[int]) -> dict[int, AnyRow]:
    rows = connection.execute(
        sa.select(Length).where(Length.trial_id.in_(trials)).order_by(Length.epochs.desc())
    )
    return {row.trial_id: row for row in rows}


def _epochs_until(
    connection: Connection, trials: set[int], first: int
) -> dict[int, dict[int, Mapping[str, float]]]:
    found: dict[int, dict[int, Mapping[str, float]]] = {}
    for row in connection.execute(
        sa.select(Epoch)
        .where(Epoch.trial_id.in_(trials), Epoch.epoch < first)
        .order_by(Epoch.epoch)
    ):
        found.setdefault(row.trial_id, {})[row.epoch] = json.loads(row.metrics)
    return found


def _computed(
    study: AnyRow, seen: Observation, reported: Mapping[int, Mapping[str, float]]
) -> Observation:
    """A trial that trained past the first length without a stop, as it would have ended there."""
    at = cast("At", json.loads(study.definition).get("at", "last"))
    values = []
    for objective in objectives_of(study):
        own = [m[objective.name] for m in reported.values() if objective.name in m]
        if not own:
            return replace(seen, state="failed", value=None, values=None)
        value = value_at(own, at, objective.direction)
        if not math.isfinite(value):
            return replace(seen, state="failed", value=None, values=None)
        values.append(value)
    return _ended_as(seen, "complete", tuple(values))


def _ended_as(seen: Observation, state: str, values: tuple[float, ...]) -> Observation:
    several = seen.values is not None or len(values) > 1
    return replace(
        seen,
        state=cast("Literal['complete', 'pruned']", state),
        value=next(iter(values), None),
        values=values if several else None,
    )
