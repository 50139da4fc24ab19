"""Beginning again: a trial under another definition, and a study in which nothing has a value yet.

What ran under one definition is no beginning of what runs under another. A trial that begins anew
keeps its number and its attempts' rows and files; its parameters, epochs, checkpoints, evaluations
and audits are forgotten, and no earlier attempt's checkpoint is gone on with.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.storage.database import Database
from sweeper.storage.queries import optuna_rows
from sweeper.storage.queries.claims import TrialSeed, is_open
from sweeper.storage.queries.rungs.standing import forget_rungs
from sweeper.storage.queries.studies import accept_definition, lock_study
from sweeper.storage.queries.study_rows import StudyRow
from sweeper.storage.tables import (
    AnyRow,
    Attempt,
    Audit,
    Checkpoint,
    Epoch,
    Evaluation,
    Parameter,
    Trial,
    Verdict,
)
from sweeper.storage.trial_tables.branches import parents_of
from sweeper.storage.trial_tables.lengths import Length


class Restarts:
    """Begins studies and trials again. Every method is one transaction; see `Repository`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accept_while_nothing_has_a_value(
        self, row: StudyRow, trial_seed: TrialSeed
    ) -> tuple[tuple[str, ...], int]:
        """Accept a changed definition without being asked to, where that can mix nothing.

        No trial has finished with a value, none is running, and none that is interrupted has
        trained. Trials that have begun, failed ones too, then begin anew under the new definition.

        Args:
            row: The study as it is defined now.
            trial_seed: Gives each trial, by its number, its seed.

        Returns:
            What changed, and how many trials begin anew; nothing where the change cannot be
            accepted, or where there is none.

        Raises:
            UnknownStudyError: There is no such study.
            DefinitionError: The direction changed.
        """
        return self._database.write(lambda c: _accept_while_nothing(c, row, trial_seed))


def _accept_while_nothing(
    connection: Connection, row: StudyRow, trial_seed: TrialSeed
) -> tuple[tuple[str, ...], int]:
    study = lock_study(connection, row.name)
    begun = connection.execute(
        sa.select(Trial, is_open().label("running")).where(Trial.study_id == study.id)
    ).all()
    unfinished = [trial for trial in begun if trial.result is None]
    if any(trial.result in ("complete", "pruned") or trial.running for trial in begun):
        return (), 0
    if any(_has_trained(connection, trial) for trial in unfinished):
        return (), 0
    changes = accept_definition(connection, row)
    if not changes:
        return (), 0
    connection.execute(sa.delete(Parameter).where(Parameter.study_id == study.id))
    for trial in begun:
        begin_anew(connection, trial, seed=trial_seed(trial.number))
    return changes, len(begun)


def begin_anew(connection: Connection, trial: AnyRow, *, seed: int | None = None) -> None:
    """Have a trial that does not run begin from nothing with its next attempt.

    Args:
        connection: In a writing transaction.
        trial: Its columns.
        seed: Its new one; None to keep the one that it has.
    """
    columns = trial._mapping
    for table in (Length, Epoch, Checkpoint, Audit, Verdict, Evaluation):
        connection.execute(sa.delete(table).where(table.trial_id == columns["id"]))
    forget_rungs(connection, columns["id"])
    connection.execute(
        sa.update(Trial)
        .where(Trial.id == columns["id"])
        .values(
            result=None,
            digest=None,
            crashes=0,
            memory_faults=0,
            errors=0,
            audited=None,
            anew_after=columns["current_attempt"],
            seed=columns["seed"] if seed is None else seed,
        )
    )
    optuna_rows.reopen_trial(connection, columns["optuna_trial_id"])
    # A branch's parameters were not drawn, so nobody could draw them again.
    kept = columns["id"] in parents_of(connection, (columns["id"],))
    optuna_rows.forget_trial(connection, columns["optuna_trial_id"], parameters=not kept)


def ran_under_another_definition(connection: Connection, study: AnyRow, trial: AnyRow) -> bool:
    """Return whether the latest attempt at a trial ran under another definition than the study's."""
    latest = connection.scalar(
        sa.select(Attempt.definition).where(
            Attempt.trial_id == trial.id, Attempt.number == trial.current_attempt
        )
    )
    return latest is not None and latest != study.fingerprint


def _has_trained(connection: Connection, trial: AnyRow) -> bool:
    """Return whether the trial has a checkpoint to resume from, or a finished epoch."""
    return any(
        connection.scalar(sa.select(sa.exists().where(table.trial_id == trial.id)))
        for table in (Checkpoint, Epoch)
    )
