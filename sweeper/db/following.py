"""Following of a study by polling its database, for a process that runs none of its trials.

A poll reads the attempts that were open at the last poll or are new since, and the new epochs of
their trials, so its cost does not grow with the number of finished trials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db import optuna_rows
from sweeper.db.repository import Repository
from sweeper.db.studies import find_study
from sweeper.db.tables import AnyRow, Attempt, Epoch, Trial
from sweeper.records.results import EpochRecord, Outcome
from sweeper.spec.space import CategoricalChoice


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """State of an attempt at a poll.

    Attributes:
        is_new: Whether it is new since the last poll.
        start_step: The step at which its training began; None before that.
        begins_after: The last epoch that its trial had finished when it was first seen; or -1.
        begins: Whether its training has begun since the last poll.
        epochs: Epochs that its trial finished in this attempt since the last poll.
        outcome: Its outcome; None while it is open.
        fails_trial: Whether its trial has failed.
    """

    token: int
    trial: int
    attempt: int
    is_new: bool
    start_step: int | None
    begins_after: int
    begins: bool
    params: Mapping[str, CategoricalChoice]
    epochs: tuple[EpochRecord, ...]
    outcome: Outcome | None
    value: float | None
    error: str | None
    end_step: int | None
    fails_trial: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """The part of an open attempt that was already returned, up to the trial's last ``epoch``."""

    began: bool = False
    epoch: int = -1


class StudyFollower:
    """Poller of a study; attempts that ended before it was created are not reported."""

    def __init__(self, repository: Repository, study: str) -> None:
        self._repository = repository
        self._study = study
        self._newest, self._open = repository.database.read(self._attempts_so_far)

    def look(self) -> tuple[AttemptEvent, ...]:
        """Return the events since the last call, in the order of the attempts.

        Raises:
            UnknownStudyError: There is no such study.
            DatabaseUnavailableError: The database cannot be reached; a later call misses nothing.
        """
        found = self._repository.database.read(self._read)
        for item in found:
            if item.outcome is not None:
                self._open.pop(item.token, None)
            else:
                before = self._open.get(item.token)
                last = item.begins_after if before is None else before.epoch
                numbers = (record.epoch for record in item.epochs)
                self._open[item.token] = _Known(item.start_step is not None, max((last, *numbers)))
            self._newest = max(self._newest, item.token)
        return found

    def _attempts_so_far(self, connection: Connection) -> tuple[int, dict[int, _Known | None]]:
        """Return the newest attempt, and the open ones."""
        of_study = self._of_study(connection)
        newest = connection.scalar(
            sa.select(sa.func.max(Attempt.id)).join_from(Attempt, Trial).where(of_study)
        )
        unfinished = connection.scalars(
            sa.select(Attempt.id)
            .join_from(Attempt, Trial)
            .where(of_study, Attempt.outcome.is_(None))
        )
        return int(newest or 0), dict.fromkeys(unfinished)

    def _of_study(self, connection: Connection) -> sa.ColumnElement[bool]:
        study_id: int = find_study(connection, self._study).id
        return Trial.study_id == study_id

    def _read(self, connection: Connection) -> tuple[AttemptEvent, ...]:
        rows = connection.execute(
            sa.select(
                Attempt.id,
                Attempt.trial_id,
                Attempt.number,
                Attempt.start_step,
                Attempt.end_step,
                Attempt.outcome,
                Attempt.error,
                Trial.number.label("trial"),
                Trial.optuna_trial_id,
                Trial.result,
            )
            .join_from(Attempt, Trial)
            .where(
                self._of_study(connection),
                sa.or_(Attempt.id > self._newest, Attempt.id.in_(tuple(self._open))),
            )
            .order_by(Attempt.id)
        ).all()
        if not rows:
            return ()
        newest_of = {row.trial_id: row.id for row in rows}
        known = {
            row.id: self._open.get(row.id) or self._first_seen(connection, row) for row in rows
        }
        epochs: dict[int, list[EpochRecord]] = {}
        for epoch in connection.execute(
            sa.select(Epoch)
            .where(
                sa.or_(
                    *(
                        sa.and_(Epoch.trial_id == row.trial_id, Epoch.epoch > known[row.id].epoch)
                        for row in rows
                        if row.id == newest_of[row.trial_id]
                    )
                )
            )
            .order_by(Epoch.epoch)
        ):
            record = EpochRecord(epoch.epoch, json.loads(epoch.metrics))
            epochs.setdefault(newest_of[epoch.trial_id], []).append(record)
        optuna_ids = tuple({row.optuna_trial_id for row in rows})
        params = optuna_rows.drawn_values(connection, optuna_ids)
        values = optuna_rows.values(connection, optuna_ids)
        found = []
        for row in rows:
            outcome = cast("Outcome | None", row.outcome)
            value = values.get(row.optuna_trial_id) if outcome in ("complete", "pruned") else None
            found.append(
                AttemptEvent(
                    token=row.id,
                    trial=row.trial,
                    attempt=row.number,
                    is_new=self._open.get(row.id) is None,
                    start_step=row.start_step,
                    begins_after=known[row.id].epoch,
                    begins=row.start_step is not None and not known[row.id].began,
                    params=params.get(row.optuna_trial_id, {}),
                    epochs=tuple(epochs.get(row.id, ())),
                    outcome=outcome,
                    value=value,
                    error=row.error,
                    end_step=row.end_step,
                    fails_trial=row.result == "failed",
                )
            )
        return tuple(found)

    def _first_seen(self, connection: Connection, row: AnyRow) -> _Known:
        """Return the state before an attempt that was not seen yet: the epochs of earlier attempts."""
        if row.number == 1:
            return _Known()
        last = connection.scalar(
            sa.select(sa.func.max(Epoch.epoch)).where(Epoch.trial_id == row.trial_id)
        )
        return _Known(epoch=-1 if last is None else int(last))
