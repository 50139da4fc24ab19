"""Branches and generations of a population: trials that begin at checkpoints of others.

A branch does not count towards the study's total, and no sampler sees it. Its number lies beyond
those of the total, so that it does not affect later trials.

A generation is decided in the transaction of a worker's claim, under the lock on the study: all of
its members are inserted at once, so it is decided only once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from sweeper.db import optuna_rows, studies
from sweeper.db.database import Statements, reading, writing
from sweeper.db.studies import StudyRow, find_study, lock_study, no_such_trial
from sweeper.db.tables import AnyRow, Branch, Checkpoint, Trial, is_beside
from sweeper.errors import DefinitionError
from sweeper.records.ancestry import ParentRecord
from sweeper.search.spaces import from_text, to_text
from sweeper.spec.budgets import Population, descents, perturbed, population_of, rung_schedule
from sweeper.spec.space import CategoricalChoice, Distribution


def last_and_beside(connection: Connection, study_id: int) -> tuple[AnyRow | None, dict[int, int]]:
    """Return the study's last trial that counts towards its total, and its branches that do not.

    Returns:
        A row with the trial's number and Optuna's id of it, or None; and Optuna's ids of the branches
        by number.
    """
    own = aliased(Trial)
    beside = sa.exists().where(Branch.trial_id == own.id, Branch.counted.is_(False))
    counted = sa.select(sa.func.max(own.number)).where(own.study_id == study_id, ~beside)
    rows = connection.execute(
        sa.select(Trial.number, Trial.optuna_trial_id, is_beside().label("beside")).where(
            Trial.study_id == study_id,
            sa.or_(is_beside(), Trial.number == counted.scalar_subquery()),
        )
    ).all()
    last = next((row for row in rows if not row.beside), None)
    return last, {row.number: row.optuna_trial_id for row in rows if row.beside}


def parents_of(
    connection: Connection, trial_ids: sa.Select[int] | Collection[int]
) -> dict[int, ParentRecord]:
    """Return the parents of the branches among the trials, by the branch's id."""
    rows = connection.execute(
        sa.select(Branch, Trial.number, Trial.current_attempt)
        .join(Trial, Trial.id == Branch.parent_id)
        .where(Branch.trial_id.in_(trial_ids))
    )
    found = {}
    for row in rows:
        drawn = json.loads(row.drawn)
        found[row.trial_id] = ParentRecord(
            number=row.number,
            step=row.step,
            digest=row.digest,
            epoch=row.epoch,
            seeded_as=row.seeded_as,
            epochs=row.epochs,
            changed=json.loads(row.changed),
            outside=tuple(json.loads(row.outside)),
            attempts=row.current_attempt,
            params={name: value for name, (value, _) in drawn.items()},
            distributions={name: from_text(text) for name, (_, text) in drawn.items()},
        )
    return found


@dataclass(frozen=True, slots=True)
class NewBranch:
    """Branch to add.

    Attributes:
        number: Its number, from `Branches.next_number`.
        parent: The parent's checkpoint.
        params: Its parameters, in the parent's order.
        distributions: The distributions for Optuna's tables; each contains its value.
        counted: Whether it counts towards the study's total, as members of a population do.
    """

    number: int
    parent: ParentRecord
    params: Mapping[str, CategoricalChoice]
    distributions: Mapping[str, Distribution]
    counted: bool = False


def insert_branch(connection: Connection, study: AnyRow, branch: NewBranch) -> None:
    """Insert a branch's rows, Optuna's and sweeper's; the study must be locked."""
    of_parent = sa.select(Trial).where(
        Trial.study_id == study.id, Trial.number == branch.parent.number
    )
    parent = connection.execute(of_parent).first()
    if parent is None:
        raise no_such_trial(connection, study, branch.parent.number)
    optuna_id = optuna_rows.create_trial(connection, study.optuna_study_id, branch.number)
    for name, value in branch.params.items():
        drawn = optuna_rows.Parameter(branch.distributions[name], value)
        optuna_rows.set_parameter(connection, optuna_id, name, drawn, lambda: None)
    shown = {"parent": branch.parent.to_json(), "changed": dict(branch.parent.changed)}
    optuna_rows.set_attributes(connection, optuna_id, shown)
    trial_id = connection.execute(
        sa.insert(Trial)
        .values(
            study_id=study.id,
            number=branch.number,
            optuna_trial_id=optuna_id,
            seed=parent.seed,
            current_attempt=0,
            crashes=0,
        )
        .returning(Trial.id)
    ).scalar_one()
    origin = branch.parent
    drawn_from = {n: (v, to_text(origin.distributions[n])) for n, v in origin.params.items()}
    connection.execute(
        sa.insert(Branch).values(
            trial_id=trial_id,
            parent_id=parent.id,
            step=origin.step,
            epoch=origin.epoch,
            digest=origin.digest,
            seeded_as=origin.seeded_as,
            epochs=origin.epochs,
            drawn=json.dumps(drawn_from),
            changed=json.dumps(dict(origin.changed)),
            outside=json.dumps(list(origin.outside)),
            counted=branch.counted,
        )
    )


Turn = Literal["none", "inserted", "over"]
"""Result of inserting a generation; "over": no trial of the previous generation can be continued."""


def next_generation(connection: Connection, study: AnyRow, begun: int) -> Turn | list[int]:
    """Insert the generation after the first ``begun`` trials, if it is due.

    The study must be locked; ``begun`` is the number of trials of its total that have begun.

    Returns:
        The result: "none" without a population, in its first generation, and after the last one; or the
        numbers of the trials that have to end first.

    Raises:
        DefinitionError: The population perturbs a parameter that the trials do not have.
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
    """Insert the next generation; return its number of trials."""
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
    """Return the newest checkpoint of a trial, at the end of its training."""
    return connection.execute(
        sa.select(Checkpoint)
        .where(Checkpoint.trial_id == trial_id)
        .order_by(Checkpoint.step.desc(), Checkpoint.id.desc())
        .limit(1)
    ).first()


def set_target(connection: Connection, name: str, target: int) -> StudyRow:
    """Change the exact total of trials; return the changed study.

    Raises:
        DefinitionError: More trials have begun; or the study's population determines the total; or
            the total is raised past branches, whose numbers points of a grid or rounds of a budget
            need.
    """
    _check_total(connection, lock_study(connection, name), target)
    return studies.set_target(connection, name, target)


def _check_total(connection: Connection, study: AnyRow, target: int) -> None:
    definition = json.loads(study.definition)
    budget = definition.get("budget")
    if target != study.target and population_of(budget) is not None:
        msg = (
            f"trials={target} for study {study.name!r}, whose population has {study.target} "
            "trials, a fixed number for each generation; do not change the total"
        )
        raise DefinitionError(msg)
    grid = definition.get("sampler") == "grid"
    rounds = not grid and rung_schedule(budget, definition.get("epochs", 1)) is not None
    if target <= study.target or not (grid or rounds):
        return
    beside = last_and_beside(connection, study.id)[1]
    if beside:
        numbers = ", ".join(map(str, sorted(beside)))
        msg = (
            f"trials={target} for study {study.name!r}, which has branches beside its total "
            f"(trial {numbers}): {'points of the grid' if grid else 'rounds of its budget'} use "
            "the numbers of trials, and those are taken; raise the total before branching, or "
            "begin another study"
        )
        raise DefinitionError(msg)


def decided_below(connection: Connection, study: AnyRow) -> int:
    """Return the number below which a population's next generation has been decided; 0 for others."""
    population = population_of(json.loads(study.definition).get("budget"))
    last = None if population is None else last_and_beside(connection, study.id)[0]
    if population is None or last is None:
        return 0
    return int(last.number - last.number % population.size)


def _next_number(connection: Connection, name: str) -> int:
    """Return the number of the study's next branch."""
    study = find_study(connection, name)
    last = connection.scalar(sa.select(sa.func.max(Trial.number)).where(Trial.study_id == study.id))
    return max(int(study.target), 0 if last is None else int(last) + 1)


def _begun_from(connection: Connection, name: str, number: int) -> tuple[int, ...]:
    """Return the numbers of the trials that start from a checkpoint of the trial, ascending."""
    study = find_study(connection, name)
    parent = sa.select(Trial.id).where(Trial.study_id == study.id, Trial.number == number)
    return tuple(
        connection.scalars(
            sa.select(Trial.number)
            .join(Branch, Branch.trial_id == Trial.id)
            .where(Branch.parent_id == parent.scalar_subquery())
            .order_by(Trial.number)
        )
    )


def _add(connection: Connection, name: str, branch: NewBranch) -> bool:
    """Add a branch, which waits for a worker; return False if its number was taken meanwhile.

    Raises:
        UnknownStudyError: There is no such study, or it has no such parent.
    """
    study = lock_study(connection, name)
    if branch.number != _next_number(connection, name):
        return False
    insert_branch(connection, study, branch)
    return True


class Branches(Statements):
    """Branches of a study. Every method is one transaction; see `Repository` for errors."""

    next_number = reading(_next_number)
    begun_from = reading(_begun_from)
    add = writing(_add)
