"""A parameter is of one kind, with the same choices, in all of a study's trials.

Optuna's samplers could read nothing else. What a parameter is stands in a row of its own, so that
to check it costs the same in the ten-thousandth trial as in the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from sweeper.declared.space import Distribution
from sweeper.search.spaces import check_alike, from_text, to_text
from sweeper.storage.queries import optuna_rows
from sweeper.storage.tables import Parameter

_KNOWN = sa.select(Parameter.number, Parameter.distribution).where(
    Parameter.study_id == sa.bindparam("study_id"), Parameter.name == sa.bindparam("name")
)


_INSERTS = {
    "postgresql": postgresql.insert(Parameter).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(Parameter).on_conflict_do_nothing(),
}


def check_in_study(
    connection: Connection,
    name: str,
    distribution: Distribution,
    *,
    study_id: int,
    optuna_study_id: int,
    number: int,
) -> None:
    """Check a parameter of trial ``number`` against the first trial that has it.

    Raises:
        ParameterError: There it is of another kind, or has other choices.
    """
    asked = {"study_id": study_id, "name": name}
    first = connection.execute(_KNOWN, asked).first()
    if first is None:
        # A study from before there were such rows has the parameter in Optuna's tables alone.
        found = optuna_rows.first_with(connection, optuna_study_id, name)
        _insert(connection, study_id, name, found or (number, to_text(distribution)))
        # Another trial may have been quicker; its row is the one that counts.
        first = connection.execute(_KNOWN, asked).one()
    check_alike(name, distribution, from_text(first.distribution), first.number)


def _insert(connection: Connection, study_id: int, name: str, found: tuple[int, str]) -> None:
    """Insert the row unless there is one by now."""
    connection.execute(
        _INSERTS[connection.dialect.name],
        {"study_id": study_id, "name": name, "number": found[0], "distribution": found[1]},
    )
