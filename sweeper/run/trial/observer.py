"""Observer of a trial's training: it reports to the worker, and hands snapshots to the writer.

Beside the checkpoints that are due, a trial that is audited takes one in the middle of an epoch
that is for the audit alone. That changes no result: where snapshots are taken never does.
"""

from __future__ import annotations

import time

from sweeper.checkpoint.format import Committed, LoadedCheckpoint, Snapshot
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import (
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    ReplaySchedule,
    Started,
    StepsReached,
)
from sweeper.run.trial.pinning import AuditPins
from sweeper.spec.checkpointing import BestSoFar, CheckpointEvery
from sweeper.support.paths import Location
from sweeper.train.loop.plan import SnapshotKeeper
from sweeper.train.state.state import Position, epochs_in

_TELL_EVERY = 0.25
"""Seconds between two `StepsReached`."""


class TrialObserver(SnapshotKeeper):
    """Tells the worker what the training loop tells, and keeps the snapshots it hands over.

    Args:
        link: To the worker.
        every: When a checkpoint is due.
        replay: Says so instead, where a finished trial is run again.
        pins: Pins what audits need; None where nothing is audited.
        best: Has an epoch that is the best so far end with a checkpoint; None where none need.
    """

    def __init__(
        self,
        link: Link,
        every: CheckpointEvery,
        replay: ReplaySchedule | None = None,
        *,
        pins: AuditPins | None = None,
        best: BestSoFar | None = None,
    ) -> None:
        super().__init__(every)
        self._best = best
        self._improved = False
        self._link = link
        self._replay = replay
        self._pins = pins
        self._middle = 0
        self._is_aside = False
        self._resumed_from: Location | None = None
        self._reported = 0.0
        self._trained_seconds = 0.0
        self._committed: Committed | None = None

    @property
    def committed(self) -> Committed | None:
        """Return the newest checkpoint that is written; None before the first."""
        return self._committed

    @property
    def committed_step(self) -> int:
        return 0 if self._committed is None else self._committed.step

    @property
    def committed_digest(self) -> str:
        return "" if self._committed is None else self._committed.digest

    def steps_until_due(self, position: Position) -> int:
        if self._replay is not None:
            return self._replay.steps_left(position.step)
        left = super().steps_until_due(position)
        return min(left, self._middle - position.step) if self._middle > position.step else left

    def is_due(self, position: Position) -> bool:
        if self._replay is not None:
            return self._replay.is_due(position.step, position.epoch)
        due = super().is_due(position) or self._improved
        self._improved = False
        self._is_aside = not due and self._is_middle(position)
        return due or self._is_aside

    def keep(self, snapshot: Snapshot) -> None:
        """Hand ``snapshot`` to the writer.

        Raises:
            CheckpointError: Writing failed.
        """
        # A snapshot to stop at is the trial's own, wherever it is taken.
        aside, self._is_aside = self._is_aside and not self.stop_requested(), False
        if aside and self._pins is not None:
            self._middle = 0
            self.writer.submit(snapshot, aside=self._pins.middle)
            return
        super().keep(snapshot)

    def _is_middle(self, position: Position) -> bool:
        """Return whether the checkpoint for the audit alone is due, and still wanted."""
        if not 0 < self._middle <= position.step or position.step_in_epoch == 0:
            return False
        if self._pins is None or not self._pins.needs_middle:
            self._middle = 0
        return self._middle > 0

    def started(self, position: Position, steps_per_epoch: int) -> None:
        self.begin(position)
        if self._pins is not None:
            self._middle = self._pins.begin(position, steps_per_epoch, self._resumed_from)
        self._link.send(
            Started(position.step, position.epoch, steps_per_epoch, self._trained_seconds)
        )

    def resumed(self, loaded: LoadedCheckpoint, *, own: bool = True) -> None:
        """Tell again what the checkpoint knows: the worker may have died before writing it down.

        Args:
            loaded: What is gone on from.
            own: Whether it is the trial's own, and not its parent's.
        """
        self._trained_seconds = loaded.trained_seconds
        self._resumed_from = loaded.path
        committed = Committed(loaded.step, loaded.epoch, loaded.digest, loaded.bytes, loaded.path)
        if own:
            self.checkpoint_committed(committed)
        else:
            self._committed = committed
        epochs = epochs_in(loaded)
        if self._best is not None:
            for record in epochs:
                self._best.improves(record.metrics)
        if epochs:
            self._link.send(EpochsEnded(epochs=epochs, step=loaded.step))

    def steps_done(self, position: Position) -> None:
        self.writer.poll()
        if self._replay is not None:
            self._replay.die_if_due(position.step, self.writer.flush)
        now = time.monotonic()
        if now - self._reported >= _TELL_EVERY:
            self._reported = now
            self._link.send(StepsReached(epoch=position.epoch, step=position.step))

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        self._improved = self._best is not None and self._best.improves(record.metrics)
        self._link.send(EpochsEnded(epochs=(record,), step=step, seconds=seconds))

    def stop_requested(self) -> bool:
        return self._link.stop_requested()

    def checkpoint_committed(self, committed: Committed) -> None:
        self._committed = committed
        # The next snapshot is handed over only when this one is announced.
        stalled = None if committed.written_seconds is None else self.stalled_seconds
        self._link.send(
            CheckpointCommitted(
                step=committed.step,
                epoch=committed.epoch,
                digest=committed.digest,
                bytes=committed.bytes,
                path=str(committed.path),
                seconds=committed.written_seconds,
                stalled_seconds=stalled,
            )
        )
        for interval in () if self._pins is None else self._pins.unreported():
            self._link.send(interval)

    def checkpoint_deleted(self, path: Location) -> None:
        self._link.send(CheckpointDeleted(path=str(path)))
