"""Taking a study away: for good, or under another name so that its own can begin anew.

Both halves of a study go together, Optuna's rows and ours, in one transaction; and neither is
possible while anybody is at work in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.errors import UsageError
from sweeper.storage.database import Database
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.leases import read_workers, suspects
from sweeper.storage.queries.studies import find_study, lock_study, study_names, trials_of
from sweeper.storage.tables import (
    Attempt,
    Audit,
    Checkpoint,
    DefinitionChange,
    Epoch,
    Evaluation,
    Parameter,
    Study,
    Trial,
    Verdict,
    Worker,
)
from sweeper.storage.trial_tables.branches import Branch
from sweeper.storage.trial_tables.lengths import Length
from sweeper.storage.trial_tables.rungs import RoundStart, Rung, RungMember

_OF_TRIALS = (Branch, RungMember, Length, Evaluation, Verdict, Audit, Checkpoint, Epoch, Attempt)
_OF_STUDY = (Rung, RoundStart, Parameter, DefinitionChange, Worker, Trial)


class Removing:
    """Takes studies away. Every method is one transaction; see `Repository` for the errors of all.

    Raises:
        UnknownStudyError: There is no such study.
        UsageError: Somebody is at work in it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def check_at_rest(self, study: str, what: str) -> None:
        """Check that nobody is at work in the study; ``what`` is to be done with it."""
        self._database.read(lambda c: _check_at_rest(c, study, what))

    def delete(self, study: str) -> None:
        """Delete every row of the study, Optuna's too."""
        self._database.write(lambda c: _delete_study(c, study))

    def rename(self, study: str, new: str, moved: Mapping[str, str]) -> None:
        """Give the study another name, and its files the directories they were ``moved`` to.

        Raises:
            UsageError: The new name is taken, or somebody is at work in the study.
        """
        self._database.write(lambda c: _rename_study(c, study, new, moved))

    def names_set_aside(self, study: str) -> tuple[str, ...]:
        """Return the names that earlier studies of this name were set aside under."""
        return self._database.read(lambda c: _names_set_aside(c, study))


def _check_at_rest(connection: Connection, name: str, what: str) -> None:
    at_work = [
        f"a worker on {worker.host} (process {worker.pid})"
        for worker in read_workers(connection, name)
        if worker.live
    ]
    study = find_study(connection, name)
    open_ones = connection.scalar(
        sa.select(sa.func.count())
        .select_from(Attempt)
        .join(Trial, Trial.id == Attempt.trial_id)
        .where(Trial.study_id == study.id, Attempt.outcome.is_(None))
    )
    running = int(open_ones or 0) - len(suspects(connection, name, None, 0.0))
    if running and not at_work:
        at_work.append(f"{running} running trial{'s' * (running > 1)}")
    if at_work:
        msg = (
            f"study {name!r} cannot be {what} while it runs ({', '.join(at_work)}); "
            f"stop it first: sweeper stop {name}"
        )
        raise UsageError(msg)


def _delete_study(connection: Connection, name: str) -> None:
    # Without Optuna's half, which its own tools may have deleted, ours still has to go.
    study = find_study(connection, name)
    connection.execute(sa.select(Study.id).where(Study.id == study.id).with_for_update())
    _check_at_rest(connection, name, "removed")
    trials = trials_of(study.id)
    for of_trial in _OF_TRIALS:
        connection.execute(sa.delete(of_trial).where(of_trial.trial_id.in_(trials)))
    for of_study in _OF_STUDY:
        connection.execute(sa.delete(of_study).where(of_study.study_id == study.id))
    connection.execute(sa.delete(Study).where(Study.id == study.id))
    optuna_rows.delete_study(connection, study.optuna_study_id)


def _rename_study(connection: Connection, name: str, new: str, moved: Mapping[str, str]) -> None:
    study = lock_study(connection, name)
    _check_at_rest(connection, name, "set aside")
    if new in (*study_names(connection), *optuna_rows.study_names(connection)):
        msg = f"the database has a study {new!r} already"
        raise UsageError(msg)
    connection.execute(sa.update(Study).where(Study.id == study.id).values(name=new))
    optuna_rows.rename_study(connection, study.optuna_study_id, new)
    trials = trials_of(study.id)
    for table, columns in (
        (Checkpoint, ("path",)),
        (Audit, ("directory", "from_path", "to_path")),
    ):
        for row in connection.execute(sa.select(table).where(table.trial_id.in_(trials))).all():
            paths = {
                column: now + path.removeprefix(was)
                for column in columns
                for was, now in moved.items()
                if (path := getattr(row, column)) is not None and path.startswith(f"{was}/")
            }
            if paths:
                connection.execute(sa.update(table).where(table.id == row.id).values(**paths))


def _names_set_aside(connection: Connection, name: str) -> tuple[str, ...]:
    names = {*study_names(connection), *optuna_rows.study_names(connection)}
    return tuple(sorted(taken for taken in names if taken.startswith(f"{name}~")))
