"""Totals of a study whose trials descend from others, and the generations that were continued."""

from __future__ import annotations

import json

from sqlalchemy.engine import Connection

from sweeper.declared.budgets import rung_schedule
from sweeper.declared.populations import population_of
from sweeper.errors import DefinitionError
from sweeper.storage.queries import studies
from sweeper.storage.queries.studies import lock_study
from sweeper.storage.queries.study_rows import StudyRow
from sweeper.storage.tables import AnyRow
from sweeper.storage.trial_tables.branches import last_and_beside


def set_target(connection: Connection, name: str, target: int) -> StudyRow:
    """Change the exact total of trials; return the study as it now is.

    Raises:
        DefinitionError: More trials have begun; or a population's size, generations and epochs say how
            many there are; or the total is raised past branches, whose numbers a grid's points or a
            budget's rounds would have gone by.
    """
    _check_total(connection, lock_study(connection, name), target)
    return studies.set_target(connection, name, target)


def _check_total(connection: Connection, study: AnyRow, target: int) -> None:
    definition = json.loads(study.definition)
    budget = definition.get("budget")
    if target != study.target and population_of(budget) is not None:
        msg = (
            f"trials={target} for study {study.name!r}, whose population has {study.target} trials: its "
            "size for each generation; leave the total as it is"
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
            f"trials={target} for study {study.name!r}, which has branches beside its total (trial "
            f"{numbers}): {'points of the grid' if grid else 'rounds of its budget'} go by trial numbers, "
            "and those are taken; raise the total before branching, or begin another study"
        )
        raise DefinitionError(msg)


def decided_below(connection: Connection, study: AnyRow) -> int:
    """Return the number below which a population's next generation has been decided; 0 for others."""
    population = population_of(json.loads(study.definition).get("budget"))
    last = None if population is None else last_and_beside(connection, study.id)[0]
    if population is None or last is None:
        return 0
    return int(last.number - last.number % population.size)
