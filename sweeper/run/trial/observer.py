"""Observer of a trial's training: reports to the worker, and passes snapshots to the writer."""

from __future__ import annotations

import time

from sweeper.checkpoint.format import Committed, LoadedCheckpoint
from sweeper.files.recorder import RECORDER
from sweeper.files.uses import uses_to_json
from sweeper.records.results import EpochRecord
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import (
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    FilesUsed,
    ReplaySchedule,
    Started,
    StepsReached,
)
from sweeper.spec.checkpointing import BestSoFar, CheckpointEvery
from sweeper.support.paths import Location
from sweeper.train.loop.plan import SnapshotKeeper
from sweeper.train.state.state import Position, epochs_in

_TELL_EVERY = 0.25
"""Seconds between two `StepsReached`."""


class TrialObserver(SnapshotKeeper):
    """Observer that reports the training's progress to the worker and keeps its snapshots.

    Args:
        link: Link to the worker.
        every: Interval of checkpoints.
        replay: Schedule of a replay, which replaces ``every``; None for an ordinary trial.
        best: Rule by which an epoch that is the best so far ends with a checkpoint; None for no rule.

    Attributes:
        committed: The newest committed checkpoint; None before the first.
    """

    def __init__(
        self,
        link: Link,
        every: CheckpointEvery,
        replay: ReplaySchedule | None = None,
        *,
        best: BestSoFar | None = None,
    ) -> None:
        super().__init__(every)
        self._best = best
        self._improved = False
        self._link = link
        self._replay = replay
        self._reported = 0.0
        self._trained_seconds = 0.0
        self.committed: Committed | None = None

    @property
    def committed_step(self) -> int:
        return 0 if self.committed is None else self.committed.step

    @property
    def committed_digest(self) -> str:
        return "" if self.committed is None else self.committed.digest

    def steps_until_due(self, position: Position) -> int:
        if self._replay is not None:
            return self._replay.steps_left(position.step)
        return super().steps_until_due(position)

    def is_due(self, position: Position) -> bool:
        if self._replay is not None:
            return self._replay.is_due(position.step, position.epoch)
        due = super().is_due(position) or self._improved
        self._improved = False
        return due

    def started(self, position: Position, steps_per_epoch: int) -> None:
        self.begin(position)
        if uses := RECORDER.uses():
            self._link.send(FilesUsed(uses_to_json(uses, RECORDER.left_out)))
        self._link.send(
            Started(position.step, position.epoch, steps_per_epoch, self._trained_seconds)
        )

    def resumed(self, loaded: LoadedCheckpoint) -> None:
        """Report the contents of the checkpoint again, because the worker may have died before storing them."""
        self._trained_seconds = loaded.trained_seconds
        committed = Committed(
            loaded.step, loaded.epoch, loaded.path, digest=loaded.digest, bytes=loaded.bytes
        )
        self.checkpoint_committed(committed)
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
        self.committed = committed
        # The next snapshot is passed on only after this call, so `stalled_seconds` is this one's.
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

    def checkpoint_deleted(self, path: Location) -> None:
        self._link.send(CheckpointDeleted(path=str(path)))
