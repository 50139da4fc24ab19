"""Leading trials of a study: the best one, or the Pareto front of several objectives."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.searching import Objective
from sweeper.results import BestTrial, ParetoTrial
from sweeper.storage.queries import optuna_rows
from sweeper.storage.tables import AnyRow, Trial


def objectives_of(study: AnyRow) -> tuple[Objective, ...]:
    """Return the study's objectives, in order."""
    further = json.loads(study.definition).get("further_objectives", ())
    return (
        Objective(study.objective, study.direction),
        *(Objective(name, direction) for name, direction in further),
    )


def best_trial(connection: Connection, study: AnyRow, trials: Sequence[AnyRow]) -> BestTrial | None:
    """Return the one of ``trials`` that is complete and has the best objective, first of equals."""
    return next(iter(leading_trials(connection, study, trials, 1)), None)


def leading_trials(
    connection: Connection, study: AnyRow, trials: Sequence[AnyRow], count: int
) -> tuple[BestTrial, ...]:
    """Return the ``count`` best of ``trials`` that are complete, the best first."""
    sign = -1 if study.direction == "maximize" else 1
    values = optuna_rows.values(connection, _complete_ids(study))
    ranked = heapq.nsmallest(
        count, ((sign * values[key], number, key) for number, key in _with_values(trials, values))
    )
    params = optuna_rows.drawn_values(connection, tuple(key for _, _, key in ranked))
    return tuple(BestTrial(number, values[key], params.get(key, {})) for _, number, key in ranked)


def pareto_front(
    connection: Connection,
    study: AnyRow,
    trials: Sequence[AnyRow],
    objectives: Sequence[Objective],
) -> tuple[ParetoTrial, ...]:
    """Return those of ``trials`` that are complete and that no other one beats, by number.

    One trial beats another where it is better in some objective and worse in none.
    """
    signs = [-1 if objective.direction == "maximize" else 1 for objective in objectives]
    values = optuna_rows.all_values(connection, _complete_ids(study))
    points = sorted(
        (tuple(sign * value for sign, value in zip(signs, values[key], strict=True)), number, key)
        for number, key in _with_values(trials, values)
        if len(values[key]) == len(signs)
    )
    # Sorted, a point can be beaten by earlier ones only, and then by one of the front so far.
    front: list[tuple[tuple[float, ...], int, int]] = []
    for point in points:
        if not any(_beats(leader[0], point[0]) for leader in front):
            front.append(point)
    leading = {number: key for _, number, key in front}
    params = optuna_rows.drawn_values(connection, tuple(leading.values()))
    return tuple(
        ParetoTrial(
            number,
            {o.name: v for o, v in zip(objectives, values[key], strict=True)},
            params.get(key, {}),
        )
        for number, key in sorted(leading.items())
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _complete_ids(study: AnyRow) -> sa.Select[int]:
    return sa.select(Trial.optuna_trial_id).where(
        Trial.study_id == study.id, Trial.result == "complete"
    )


def _with_values(trials: Sequence[AnyRow], values: Mapping[int, Any]) -> list[tuple[int, int]]:
    """Number and Optuna's id of the trials that have values."""
    return [(t.number, t.optuna_trial_id) for t in trials if t.optuna_trial_id in values]
