"""Schedule of checkpoints, their measured cost, and the transfer of snapshots to the writer."""

from __future__ import annotations

import time
from collections.abc import Callable

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.spec.checkpointing import CheckpointEvery, Every
from sweeper.train.state.state import Position

_AUTO_SHARE = 0.01
"""Share of training time for checkpoints with ``"auto"``."""

_AUTO_LEAST_SECONDS = 1.0


class CheckpointSchedule:
    """Schedule of an `Every`, or of the shortest interval that costs less than 1% of the training.

    Args:
        every: The interval, or ``"auto"``.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, every: CheckpointEvery, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._step = self._epoch = 0
        self._at = clock()
        self._cost = 0.0

    def begin(self, step: int, epoch: int) -> None:
        """Record the start or resume of the training."""
        self._step, self._epoch, self._at = step, epoch, self._clock()

    def taken(self, step: int, epoch: int, *, stalled_seconds: float) -> None:
        """Record a checkpoint and the time that training waited for it."""
        self.begin(step, epoch)
        self._cost = max(stalled_seconds, self._cost / 2)

    def is_due(self, step: int, epoch: int) -> bool:
        """Return whether a checkpoint is due at this step; never twice at the same step."""
        if step == self._step and epoch == self._epoch:
            return False
        since = self._clock() - self._at
        if isinstance(self._every, Every):
            return self._every.due(
                step=step, epoch=epoch, last_step=self._step, last_epoch=self._epoch, since=since
            )
        return since >= max(_AUTO_LEAST_SECONDS, self._cost / _AUTO_SHARE)

    def steps_left(self, step: int) -> int:
        """Return the number of steps before a checkpoint may be due; a large number if never."""
        due = self._every.next_step(step) if isinstance(self._every, Every) else None
        return 1 << 30 if due is None else due - step


class SnapshotKeeper:
    """The part of an `Observer` that keeps snapshots, for trials and `sweeper.fit`.

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
        """Record the start or resume of the training."""
        self._schedule.begin(position.step, position.epoch)

    def steps_until_due(self, position: Position) -> int:
        """Return the number of steps before the next snapshot may be due; at least 1."""
        return self._schedule.steps_left(position.step)

    def is_due(self, position: Position) -> bool:
        """Return whether a snapshot is due now. If so, time from now on counts as its cost."""
        self._asked_at = self._clock()
        return self._schedule.is_due(position.step, position.epoch)

    def keep(self, snapshot: Snapshot) -> None:
        """Pass ``snapshot`` to the writer, after the previous one has been written.

        Raises:
            CheckpointError: Writing failed.
        """
        self.writer.submit(snapshot)
        self.stalled_seconds = self._clock() - self._asked_at
        self._schedule.taken(snapshot.step, snapshot.epoch, stalled_seconds=self.stalled_seconds)
