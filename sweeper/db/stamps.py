"""State of a study's rows in a few numbers, by which a page that is open sees what has changed.

A page asks every two seconds, and the records of a thousand trials take seconds to read. So one query reads,
for each trial, the columns that change and the newest key of each table that only grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.leases import is_lost, open_attempts, read_workers
from sweeper.db.repeats import repeating_of
from sweeper.db.studies import find_study, number_of_changes
from sweeper.db.tables import (
    Attempt,
    Audit,
    Checkpoint,
    Epoch,
    Evaluation,
    Length,
    RungMember,
    Study,
    Trial,
    Verdict,
)
from sweeper.spec.repeating import confirmation_name


@dataclass(frozen=True, slots=True)
class Stamps:
    """State of a study's rows; equal as long as no record of the study has changed.

    Attributes:
        identity: The study's identity, another one if it was deleted and run again.
        study: State of the study itself, of its workers and of its confirmation.
        trials: State of each trial, by its number: all but its progress, and its progress (epochs and
            checkpoints), on which no other part of the status depends.
        is_repeated: Whether it has configurations with repeats, or a confirmation.
    """

    identity: str
    study: tuple[Any, ...]
    trials: Mapping[int, tuple[Any, Any]]
    is_repeated: bool

    @property
    def but_progress(self) -> tuple[Any, ...]:
        """Return the state of all but the trials' progress."""
        return self.study, {number: state for number, (state, _) in self.trials.items()}


def read_stamps(connection: Connection, name: str) -> Stamps:
    """Return the state of a study's rows."""
    study = find_study(connection, name)
    beside = connection.execute(
        sa.select(Study).where(Study.name == confirmation_name(name))
    ).first()
    workers = tuple((each.key, each.live) for each in read_workers(connection, name))
    known = (
        *(study.target, study.epochs, study.inexact_accepted_at, study.fingerprint),
        number_of_changes(connection, study.id),
        workers,
        None if beside is None else tuple(_trials(connection, beside.id).items()),
    )
    repeated = beside is not None or not repeating_of(study).is_plain
    return Stamps(study.identity, known, _trials(connection, study.id), repeated)


def _trials(connection: Connection, study_id: int) -> dict[int, tuple[Any, Any]]:
    lost = {
        row.trial_id
        for row in connection.execute(open_attempts().where(Trial.study_id == study_id))
        if is_lost(row)
    }
    last = sa.and_(Attempt.trial_id == Trial.id, Attempt.number == Trial.current_attempt)
    decided = sa.func.count(Audit.outcome)
    rows = connection.execute(
        sa.select(
            *(Trial.id, Trial.number),
            _of_trial(Epoch.trial_id, sa.func.max(Epoch.epoch)),
            _of_trial(Checkpoint.trial_id, sa.func.max(Checkpoint.id)),
            _of_trial(Checkpoint.trial_id, sa.func.count()),
            *(Trial.result, Trial.current_attempt, Trial.paused),
            *(Trial.digest, Trial.epochs, Trial.anew_after, Attempt.outcome, Attempt.pid),
            *(Attempt.start_step, Attempt.end_step),
            *(sa.func.length(Attempt.files), sa.func.length(Attempt.fingerprint)),
            _of_trial(Evaluation.trial_id, sa.func.max(Evaluation.id)),
            _of_trial(Verdict.trial_id, sa.func.max(Verdict.id)),
            _of_trial(Length.trial_id, sa.func.count()),
            _of_trial(RungMember.trial_id, sa.func.count()),
            _of_trial(RungMember.trial_id, sa.func.count(RungMember.promoted)),
            _of_trial(Audit.trial_id, decided),
            optuna_rows.parameter_count(Trial.optuna_trial_id),
        )
        .outerjoin(Attempt, last)
        .where(Trial.study_id == study_id)
        .order_by(Trial.number)
    )
    return {row[1]: ((*row[5:], row[0] in lost), row[2:5]) for row in rows.all()}


def _of_trial(column: Any, value: Any) -> sa.ScalarSelect[Any]:
    return sa.select(value).where(column == Trial.id).correlate(Trial.__table__).scalar_subquery()
