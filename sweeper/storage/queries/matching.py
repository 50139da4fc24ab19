"""Make the database's list of a trial's checkpoints the one on disk, after a crash between the two.

The disk is the truth: a checkpoint that is there and whole can be resumed from, whether or not
anyone wrote it down; one that is written down and gone cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.errors import StorageError
from sweeper.results import CheckpointRecord
from sweeper.storage.queries.attempts import checkpoint_columns
from sweeper.storage.queries.claims import is_open
from sweeper.storage.queries.studies import find_study
from sweeper.storage.tables import Checkpoint, Trial


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A whole checkpoint on disk, and the attempt whose directory it is in."""

    attempt: int
    record: CheckpointRecord


def match_checkpoints(
    connection: Connection, study: str, number: int, found: Sequence[FoundCheckpoint]
) -> int:
    """Replace what is stored of a trial's checkpoints by ``found``; return how many rows changed.

    Of attempts before the trial began anew none is stored, because none is gone on with.

    Raises:
        UnknownStudyError: There is no such study.
        StorageError: The trial is running: its attempt alone writes about its checkpoints.
    """
    trial = connection.execute(
        sa.select(Trial.id, Trial.anew_after, is_open().label("running")).where(
            Trial.study_id == find_study(connection, study).id, Trial.number == number
        )
    ).one()
    if trial.running:
        msg = (
            f"trial {number} of study {study!r} is running, so its checkpoints are its own; "
            "wait until it has ended"
        )
        raise StorageError(msg)
    stored = {
        row.path: row
        for row in connection.execute(sa.select(Checkpoint).where(Checkpoint.trial_id == trial.id))
    }
    wanted = {c.record.path: c for c in found if c.attempt > trial.anew_after}
    gone = [path for path in stored if path not in wanted]
    new = [checkpoint for path, checkpoint in wanted.items() if path not in stored]
    if gone:
        connection.execute(
            sa.delete(Checkpoint).where(Checkpoint.trial_id == trial.id, Checkpoint.path.in_(gone))
        )
    if new:
        connection.execute(
            sa.insert(Checkpoint),
            [checkpoint_columns(trial.id, one.attempt, one.record) for one in new],
        )
    return len(gone) + len(new)
