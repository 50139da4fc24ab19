"""Which complete trials lead a study: the best one, or those that no other beats in everything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from sweeper.results import BestTrial, ParetoTrial
from sweeper.searching import Objective
from sweeper.storage import optuna_rows
from sweeper.storage.tables import Trial

__all__ = ["best_trial", "objectives_of", "pareto_front"]


def objectives_of(study: Row[*tuple[Any, ...]]) -> tuple[Objective, ...]:
    """Return the study's objectives, in order."""
    further = json.loads(study.definition).get("further_objectives", ())
    return (
        Objective(study.objective, study.direction),
        *(Objective(name, direction) for name, direction in further),
    )


def best_trial(
    connection: Connection, study: Row[*tuple[Any, ...]], trials: Sequence[Row[*tuple[Any, ...]]]
) -> BestTrial | None:
    """Return the one of ``trials`` that is complete and has the best objective, first of equals."""
    sign = -1 if study.direction == "maximize" else 1
    values = optuna_rows.values(connection, _complete_ids(study))
    ranked = [(sign * values[key], number, key) for number, key in _with_values(trials, values)]
    if not ranked:
        return None
    _, number, key = min(ranked)
    stored = optuna_rows.parameters(connection, (key,)).get(key, {})
    return BestTrial(number, values[key], {n: p.value for n, p in stored.items()})


def pareto_front(
    connection: Connection,
    study: Row[*tuple[Any, ...]],
    trials: Sequence[Row[*tuple[Any, ...]]],
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
    stored = optuna_rows.parameters(connection, tuple(leading.values()))
    return tuple(
        ParetoTrial(
            number,
            {o.name: v for o, v in zip(objectives, values[key], strict=True)},
            {name: p.value for name, p in stored.get(key, {}).items()},
        )
        for number, key in sorted(leading.items())
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _complete_ids(study: Row[*tuple[Any, ...]]) -> sa.Select[int]:
    return sa.select(Trial.optuna_trial_id).where(
        Trial.study_id == study.id, Trial.result == "complete"
    )


def _with_values(
    trials: Sequence[Row[*tuple[Any, ...]]], values: Mapping[int, Any]
) -> list[tuple[int, int]]:
    """Number and Optuna's id of the trials that have values."""
    return [(t.number, t.optuna_trial_id) for t in trials if t.optuna_trial_id in values]
