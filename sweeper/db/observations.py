"""Observations from outside of a study: results of other trainings, which only its sampler uses.

Each has the number of the first trial that uses it, which is the next one when it is stored, under the study's
lock. So a trial that has begun draws the same parameters when it is resumed, and any number of workers draw
the same. An observation that is withdrawn stays stored for the trials that have used it.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.tables import AnyRow, Observed, record_of
from sweeper.declarations.observing import ForeignObservation, observed_text
from sweeper.records.configurations import identity_of

_IN_OPTUNA = "observations (no trials)"
"""Name of the study's attribute that Optuna's tools show."""


def observations_of(connection: Connection, study_id: int) -> tuple[ForeignObservation, ...]:
    """Return the study's observations, the oldest first, also those that were withdrawn."""
    query = sa.select(Observed).where(Observed.study_id == study_id).order_by(Observed.id)
    return tuple(
        record_of(ForeignObservation, row, values=tuple(row.objectives))
        for row in connection.execute(query)
    )


def add_observations(
    connection: Connection,
    study: AnyRow,
    observations: Iterable[ForeignObservation],
    since: int,
    source: str | None = None,
) -> int:
    """Store those observations that the study does not have from this source; return their number."""
    active = [o for o in observations_of(connection, study.id) if o.until is None]
    present = {_content(o) for o in active if o.source == source}
    added = {_content(o): o for o in observations if _content(o) not in present}
    rows = [
        {"params": dict(o.params), "objectives": list(o.values), "since": since, "source": source}
        for o in added.values()
    ]
    if rows:
        connection.execute(sa.insert(Observed).values(study_id=study.id), rows)
    _show_in_optuna(connection, study)
    return len(rows)


def withdraw_observations(
    connection: Connection, study: AnyRow, until: int, *, declared: bool
) -> int:
    """End the use of the study's observations before trial ``until``; return their number.

    With ``declared``, only of those that its definition gives.
    """
    condition = sa.and_(Observed.study_id == study.id, Observed.until.is_(None))
    if declared:
        condition &= Observed.source.is_(None)
    withdrawn = connection.execute(sa.update(Observed).where(condition).values(until=until))
    # No trial has used these.
    unused = sa.and_(Observed.study_id == study.id, Observed.since >= Observed.until)
    connection.execute(sa.delete(Observed).where(unused))
    _show_in_optuna(connection, study)
    return withdrawn.rowcount


def declare_observations(
    connection: Connection, study: AnyRow, declared: Iterable[ForeignObservation], since: int
) -> None:
    """Store the observations of the study's definition in place of those of an earlier definition."""
    given = {_content(o): o for o in declared}
    active = [o for o in observations_of(connection, study.id) if o.until is None]
    if [_content(o) for o in active if o.source is None] == [*given]:
        return
    withdraw_observations(connection, study, since, declared=True)
    add_observations(connection, study, given.values(), since)


def use_from_start(connection: Connection, study: AnyRow) -> None:
    """Let all trials use the study's observations, because all of them start again."""
    observed = Observed.study_id == study.id
    connection.execute(sa.delete(Observed).where(observed, Observed.until.is_not(None)))
    connection.execute(sa.update(Observed).where(observed).values(since=0))


def _content(observation: ForeignObservation) -> tuple[str, tuple[float, ...]]:
    return identity_of(observation.params), observation.values


def _show_in_optuna(connection: Connection, study: AnyRow) -> None:
    text = observed_text(observations_of(connection, study.id))
    optuna_rows.set_study_attribute(connection, study.optuna_study_id, _IN_OPTUNA, text)
