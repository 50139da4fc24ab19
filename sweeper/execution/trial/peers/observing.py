"""Observers of a training of several processes: the first one decides, the others do as it did.

Each question that the loop asks is decided by the first process at the same position of the training,
so all of them stop, and take their snapshots, after the same step.
"""

from __future__ import annotations

from collections.abc import Callable

from sweeper.checkpoints.format import Snapshot
from sweeper.results import EpochRecord
from sweeper.training.loop.plan import Observer, Stopped
from sweeper.training.replicas.lockstep import Lockstep
from sweeper.training.state.state import Position

_STOP = "whether to stop"
_DUE = "whether a checkpoint is due"
_SNAPSHOT = "a checkpoint"
_HELD = "whether it was stopped while it waited"
_START = "the beginning"


class LeadingObserver:
    """The first process's: ``observer`` decides, and gets the snapshots of all processes in one.

    Args:
        observer: The trial's.
        lockstep: With the other processes.
        gather: Adds the state of the other processes to a snapshot.
    """

    def __init__(
        self, observer: Observer, lockstep: Lockstep, gather: Callable[[Snapshot], Snapshot]
    ) -> None:
        self._observer = observer
        self._lockstep = lockstep
        self._gather = gather
        self._step = 0

    def started(self, position: Position, steps_per_epoch: int) -> None:
        self._step = self._lockstep.agree(_START, position.step, position.step)
        self._observer.started(position, steps_per_epoch)

    def steps_done(self, position: Position) -> None:
        self._step = position.step
        self._observer.steps_done(position)

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        self._observer.epoch_ended(record, step, seconds)

    def steps_until_due(self, position: Position) -> int:
        return self._observer.steps_until_due(position)

    def is_due(self, position: Position) -> bool:
        return bool(self._lockstep.agree(_DUE, position.step, self._observer.is_due(position)))

    def keep(self, snapshot: Snapshot) -> None:
        """Keep the snapshot of all processes.

        Raises:
            CheckpointError: Writing failed.
            Stopped: It was asked for while the trial waited.
        """
        self._lockstep.agree(_SNAPSHOT, snapshot.step, 1)
        stopped = False
        try:
            self._observer.keep(self._gather(snapshot))
        except Stopped:
            stopped = True
        if self._lockstep.agree(_HELD, snapshot.step, stopped):
            raise Stopped

    def stop_requested(self) -> bool:
        return bool(self._lockstep.agree(_STOP, self._step, self._observer.stop_requested()))


class FollowingObserver:
    """Another process's: all that it decides was decided by the first one.

    Args:
        lockstep: With the first process.
        give: Hands this process's state to the first one.
    """

    def __init__(self, lockstep: Lockstep, give: Callable[[Snapshot], None]) -> None:
        self._lockstep = lockstep
        self._give = give
        self._step = 0

    def started(self, position: Position, steps_per_epoch: int) -> None:
        del steps_per_epoch
        self._step = self._lockstep.agree(_START, position.step, position.step)

    def steps_done(self, position: Position) -> None:
        self._step = position.step

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        """The first process tells of it."""

    def steps_until_due(self, position: Position) -> int:
        """Any number: the first process decides on blocks."""
        del position
        return 1

    def is_due(self, position: Position) -> bool:
        return bool(self._lockstep.agree(_DUE, position.step, 0))

    def keep(self, snapshot: Snapshot) -> None:
        """Hand the snapshot over.

        Raises:
            Stopped: It was asked for while the trial waited.
        """
        self._lockstep.agree(_SNAPSHOT, snapshot.step, 1)
        self._give(snapshot)
        if self._lockstep.agree(_HELD, snapshot.step, 0):
            raise Stopped

    def stop_requested(self) -> bool:
        return bool(self._lockstep.agree(_STOP, self._step, 0))
