"""A population's next generation: who descends from whom, decided once, when the one before is whole.

The decision is part of the transaction in which a worker claims, under the lock on the study: all
members of a generation are inserted at once, or none. That they are there says that it was taken, so it
is never taken twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.declared.populations import Population, descents, perturbed, population_of
from sweeper.records.ancestry import ParentRecord
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.descent.inserting import NewBranch, insert_branch
from sweeper.storage.tables import AnyRow, Checkpoint, Trial
from sweeper.storage.trial_tables.branches import parents_of

Turn = Literal["none", "inserted", "over"]
"""Whether a generation was inserted; "over": no trial of the one before can be gone on from."""


def next_generation(connection: Connection, study: AnyRow, begun: int) -> Turn | list[int]:
    """Insert the generation that comes after the first ``begun`` trials, if it is its turn.

    Args:
        connection: In a writing transaction that has the study locked.
        study: Its columns.
        begun: How many trials of its total there are.

    Returns:
        What was done; "none" where the study has no population, or its first generation is being
        drawn, or all are there. Or the trials that have to end first.

    Raises:
        DefinitionError: The population perturbs what the trials do not have.
    """
    population = population_of(json.loads(study.definition).get("budget"))
    if population is None or not begun or begun % population.size or begun >= study.target:
        return "none"
    generation = connection.execute(
        sa.select(Trial)
        .where(
            Trial.study_id == study.id,
            Trial.number >= begun - population.size,
            Trial.number < begun,
        )
        .order_by(Trial.number)
    ).all()
    unfinished = [trial.number for trial in generation if trial.result is None]
    if unfinished:
        return unfinished
    inserted = _insert(connection, study, population, generation)
    return "inserted" if inserted else "over"


def _insert(
    connection: Connection, study: AnyRow, population: Population, generation: Sequence[AnyRow]
) -> int:
    """Insert the generation that descends from this one; return of how many trials it is."""
    count = 0
    ends = {trial.number: _end(connection, trial.id) for trial in generation}
    ids = [trial.optuna_trial_id for trial in generation]
    values = optuna_rows.values(connection, ids)
    drawn = optuna_rows.parameters(connection, ids)
    before = parents_of(connection, [trial.id for trial in generation])
    of_number = {trial.number: trial for trial in generation}
    ranked = [
        (
            trial.number,
            values.get(trial.optuna_trial_id)
            if trial.result == "complete" and ends[trial.number] is not None
            else None,
        )
        for trial in generation
    ]
    for each in descents(population, ranked, direction=study.direction, seed=study.seed):
        parent, end = of_number[each.parent], ends[each.parent]
        if each.number >= study.target or end is None:
            continue
        parameters = drawn.get(parent.optuna_trial_id, {})
        params = {name: p.value for name, p in parameters.items()}
        distributions = {name: p.distribution for name, p in parameters.items()}
        changed = {}
        if each.perturbed:
            changed = perturbed(
                population, params, distributions, seed=study.seed, number=each.number
            )
        ancestor = before.get(parent.id)
        origin = ParentRecord(
            number=parent.number,
            step=end.step,
            digest=end.digest,
            epoch=end.epoch,
            seeded_as=parent.number if ancestor is None else ancestor.seeded_as,
            epochs=(each.number // population.size + 1) * population.every,
            changed=changed,
            params=params,
            distributions=distributions,
        )
        own = {**params, **changed}
        insert_branch(
            connection, study, NewBranch(each.number, origin, own, distributions, counted=True)
        )
        count += 1
    return count


def _end(connection: Connection, trial_id: int) -> AnyRow | None:
    """Return the newest checkpoint of a trial, where its training ended."""
    return connection.execute(
        sa.select(Checkpoint)
        .where(Checkpoint.trial_id == trial_id)
        .order_by(Checkpoint.step.desc(), Checkpoint.id.desc())
        .limit(1)
    ).first()
