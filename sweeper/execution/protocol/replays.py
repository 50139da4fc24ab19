"""What a trial process does otherwise when a trial is run again to be compared, or rehearsed.

Checkpoints are taken exactly where the finished trial has kept some, and none is deleted: the
process that compares deletes them when it has seen them. Where they are taken changes no result,
so the study's own interval, which may go by the clock, is not followed.

A replay that is to be killed kills itself, by SIGKILL and at an exact step: a signal from outside
would come a moment sooner or later, and the same seed would not give the same test twice.

A rehearsal is a replay that ends with a report: of what was built and read, or of each step of a short
training. `sweeper check` and the early check of a run order them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Literal

from sweeper.checkpoints.policy import Keep
from sweeper.execution.protocol.sendable import sendable
from sweeper.replay.reports import Lengths, RehearsalReport

KEEP_ALL = Keep(last=1 << 40)
"""The rules under which a replay deletes nothing."""

_NEVER = 1 << 30


Part = Literal["build", "read", "together", "train"]
"""
- ``"build"``: build one trial, as a process of a run would, and read its validation data.
- ``"read"``: the same; then read its training data, and make the variables that a batch makes.
- ``"together"``: build several trials in this one process, as ``isolation="inline"`` would, after the
  first one's data were read; what they would share is reported, and is no error.
- ``"train"``: build a trial and train some epochs, watched.
"""


@sendable
class Rehearsal:
    """What to do in place of a trial.

    Attributes:
        part: See `Part`.
        number: The trial to build, for ``"build"`` and ``"read"``.
        like: The trial whose parameters it is built with; None for its own.
    """

    part: Part
    number: int = 0
    like: int | None = None


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
        rehearsal: What to do and to report in place of the whole training; None to run it.
    """

    checkpoints: tuple[tuple[int, int], ...]
    also_after: int | None = None
    die_after: int | None = None
    aside: bool = False
    lengths: Lengths | None = None
    rehearsal: Rehearsal | None = None


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


@sendable
class Rehearsing:
    """Up: what is about to be done, and for which trial; parameters asked for next are its.

    Attributes:
        sound: Whether it is known by now that the trial would not be refused.
    """

    stage: str
    number: int
    sound: bool = False
    kind: Literal["rehearsing"] = "rehearsing"


@sendable
class Rehearsed:
    """Up, last: all that was found."""

    report: RehearsalReport
    kind: Literal["rehearsed"] = "rehearsed"
