"""Snapshots on their way to the disk: when one is due, what it cost, and who writes it."""

from __future__ import annotations

import time
from collections.abc import Callable

from sweeper.checkpoints.format import Snapshot
from sweeper.checkpoints.policy import CheckpointEvery
from sweeper.checkpoints.writer import BackgroundWriter
from sweeper.training.loop.schedule import CheckpointSchedule
from sweeper.training.state.state import Position


class SnapshotKeeper:
    """The half of an `Observer` that keeps snapshots; a trial's and `sweeper.fit`'s are the same.

    Args:
        every: When a snapshot is due.
        clock: A monotonic clock, in seconds.

    Attributes:
        writer: Writes the snapshots; given before training begins, since it tells its observer of
            what it wrote.
        stalled_seconds: How long training stood still for the newest snapshot.
    """

    writer: BackgroundWriter
    stalled_seconds: float = 0.0

    def __init__(self, every: CheckpointEvery, clock: Callable[[], float] = time.monotonic) -> None:
        self._schedule = CheckpointSchedule(every, clock)
        self._clock = clock
        self._asked_at = clock()

    def begin(self, position: Position) -> None:
        """Training begins, or goes on, here."""
        self._schedule.begin(position.step, position.epoch)

    def steps_until_due(self, position: Position) -> int:
        """Steps that may run before the next snapshot by steps is due; at least 1."""
        return self._schedule.steps_left(position.step)

    def is_due(self, position: Position) -> bool:
        """Whether a snapshot is due here. What is taken now counts as the snapshot's cost."""
        self._asked_at = self._clock()
        return self._schedule.is_due(position.step, position.epoch)

    def keep(self, snapshot: Snapshot) -> None:
        """Hand ``snapshot`` to the writer, after the one before it has been written.

        Raises:
            CheckpointError: Writing failed.
        """
        self.writer.submit(snapshot)
        self.stalled_seconds = self._clock() - self._asked_at
        self._schedule.taken(snapshot.step, snapshot.epoch, stalled_seconds=self.stalled_seconds)
