"""When the next checkpoint is due, given what the last ones cost."""

from __future__ import annotations

import time
from collections.abc import Callable

from sweeper.checkpoints.policy import CheckpointEvery, Every

_AUTO_SHARE = 0.01
"""The part of training time that ``"auto"`` lets checkpoints take."""

_AUTO_LEAST_SECONDS = 1.0


class CheckpointSchedule:
    """Follows one `Every`, or finds the shortest interval that costs under 1% of the training.

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
        """Training begins, or goes on from a checkpoint, here."""
        self._step, self._epoch, self._at = step, epoch, self._clock()

    def taken(self, step: int, epoch: int, *, stalled_seconds: float) -> None:
        """A checkpoint was taken here, and training stood still for so long because of it."""
        self.begin(step, epoch)
        self._cost = max(stalled_seconds, self._cost / 2)

    def is_due(self, step: int, epoch: int) -> bool:
        """Whether one is due at this step; never twice at the same one."""
        if step == self._step and epoch == self._epoch:
            return False
        since = self._clock() - self._at
        if isinstance(self._every, Every):
            return self._every.due(
                step=step, epoch=epoch, last_step=self._step, last_epoch=self._epoch, since=since
            )
        return since >= max(_AUTO_LEAST_SECONDS, self._cost / _AUTO_SHARE)

    def steps_left(self, step: int) -> int:
        """Steps that may run before one is due by steps; a large number where none ever is."""
        due = self._every.next_step(step) if isinstance(self._every, Every) else None
        return 1 << 30 if due is None else due - step
