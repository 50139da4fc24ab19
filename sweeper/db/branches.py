"""Branches: trials that begin at checkpoints of others.

A branch does not count towards the study's total, and no sampler sees it. Its number lies beyond
those of the total, so that it does not affect later trials.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from sweeper.db import optuna_rows, studies
from sweeper.db.database import Statements, reading, writing
from sweeper.db.studies import StudyRow, find_study, lock_study, no_such_trial
from sweeper.db.tables import AnyRow, Branch, Trial, is_beside
from sweeper.errors import DefinitionError
from sweeper.records.ancestry import ParentRecord
from sweeper.search.spaces import from_text, to_text
from sweeper.spec.budgets import rung_schedule
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
    """

    number: int
    parent: ParentRecord
    params: Mapping[str, CategoricalChoice]
    distributions: Mapping[str, Distribution]


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
            counted=False,
        )
    )


def set_target(connection: Connection, name: str, target: int) -> StudyRow:
    """Change the exact total of trials; return the changed study.

    Raises:
        DefinitionError: More trials have begun; or the total is raised past branches, whose numbers
            points of a grid or rounds of a budget need.
    """
    _check_total(connection, lock_study(connection, name), target)
    return studies.set_target(connection, name, target)


def _check_total(connection: Connection, study: AnyRow, target: int) -> None:
    definition = json.loads(study.definition)
    budget = definition.get("budget")
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
