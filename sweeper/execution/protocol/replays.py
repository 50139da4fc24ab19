"""What a trial process does otherwise when a finished trial is run again to be compared.

Checkpoints are taken exactly where the finished trial has kept some, and none is deleted: the
process that compares deletes them when it has seen them. Where they are taken changes no result,
so the study's own interval, which may go by the clock, is not followed.

A replay that is to be killed kills itself, by SIGKILL and at an exact step: a signal from outside
would come a moment sooner or later, and the same seed would not give the same test twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from sweeper.checkpoints.policy import Keep
from sweeper.execution.protocol.sendable import sendable
from sweeper.replay.reports import Lengths

KEEP_ALL = Keep(last=1 << 40)
"""The rules under which a replay deletes nothing."""

_NEVER = 1 << 30


@sendable
class Replay:
    """How to run a finished trial again, beside everything that its assignment says.

    Attributes:
        checkpoints: The step and the finished epochs of each checkpoint to take.
        also_after: One more at the first position from this step on.
        die_after: End the process at the first position from this step on, by SIGKILL, as soon as
            what is being written is on disk.
        aside: Whether the trial that is run again may still run itself: then the files of Keras's
            callbacks that lie outside the trial's directory are others.
        lengths: How long its epochs and validations are; None for the study's own.
    """

    checkpoints: tuple[tuple[int, int], ...]
    also_after: int | None = None
    die_after: int | None = None
    aside: bool = False
    lengths: Lengths | None = None


class ReplaySchedule:
    """Follows one `Replay`, step by step."""

    def __init__(self, replay: Replay) -> None:
        self._wanted = frozenset(replay.checkpoints)
        self._also_after = replay.also_after
        self._die_after = replay.die_after

    def steps_left(self, step: int) -> int:
        """Steps that may run before something is to be done; at least 1."""
        ends = {due for due, _ in self._wanted} | {self._also_after, self._die_after}
        return min((p - step for p in ends if p is not None and p > step), default=_NEVER)

    def is_due(self, step: int, epoch: int) -> bool:
        """Whether a checkpoint is to be taken here."""
        also = self._also_after is not None and step >= self._also_after
        if also:
            self._also_after = None
        return also or (step, epoch) in self._wanted

    def die_if_due(self, step: int, flush: Callable[[], None]) -> None:
        """End this process if that is wanted here, after ``flush`` has waited for the disk."""
        if self._die_after is not None and step >= self._die_after:
            flush()
            os.kill(os.getpid(), signal.SIGKILL)
