"""Pinning of the two checkpoints of an audited interval, so that retention does not delete them.

The thread that writes checkpoints pins them, right after a commit and before retention, by hard links
where the file system supports them. A pin then takes no time, and no space until the trial's own
checkpoint is deleted. For checkpoints in an object store, a second copy is first written on this disk.
Each interval has its own directory, which is removed after the verdict::

    trial-00000/audit/attempt-01/20-40/from/step-000000020/   the checkpoint to resume
                                 20-40/to/step-000000040/     the checkpoint to compare with

A pin that fails drops its audit and leaves the trial alone.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.checkpoint.format import Committed, Snapshot, decode_values
from sweeper.checkpoint.identity import Origin
from sweeper.checkpoint.operations import free_pins
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.writer import Store
from sweeper.errors import CheckpointError
from sweeper.run.protocol.messages import AuditOrder, IntervalPinned
from sweeper.support.paths import Location

if TYPE_CHECKING:
    from sweeper.train.state.state import Position

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
_NO_END = 1 << 40
_BEGINNING = 0
_TRIES = 10


@dataclass(frozen=True)
class _Start:
    """Start of the next interval: a checkpoint on this disk, or None for the trial's beginning."""

    step: int
    path: Path | None


class AuditPins:
    """Pins of one attempt, as its `AuditOrder` says.

    ``origin`` is that of the checkpoints that are written for the audit alone.

    Attributes:
        left: Number of intervals that are still to be pinned.
    """

    def __init__(self, order: AuditOrder, origin: Origin | None = None) -> None:
        self._order = order
        self._origin = origin
        self._directory = Path(order.directory)
        self._start: _Start | None = None
        self._steps = 0
        self._pinned: deque[IntervalPinned] = deque()
        self.left = _NO_END if order.which == "all" else order.wanted

    def begin(self, at: Position, steps_per_epoch: int, path: Location | None) -> int:
        """Note that training begins at ``at``, or resumes there from the checkpoint ``path``.

        Returns:
            The step from which on a checkpoint for the audit alone is taken, in the middle of an
            epoch; 0 for none.
        """
        self._steps = steps_per_epoch
        order = self._order
        from_the_beginning = order.which == "all" or (order.which == "drawn" and not order.epoch)
        if path is None:
            self._start = _Start(_BEGINNING, None) if from_the_beginning else None
        elif isinstance(path, Path) and at.epoch >= order.epoch:
            self._start = _Start(at.step, path)
        if not order.middle or at.step_in_epoch > 0:
            return 0
        if steps_per_epoch == 1:
            # No step is in the middle of an epoch, so the first interval starts at the beginning.
            self._start = self._start or _Start(_BEGINNING, None)
            return 0
        self._start = None
        return at.step + max(1, steps_per_epoch // 2)

    @property
    def needs_middle(self) -> bool:
        """Return whether the next interval has no start yet."""
        return self._start is None

    @property
    def middle(self) -> Store:
        """Return the store for the checkpoint for the audit alone, which starts an interval."""
        return _Middle(self)

    def pin(self, done: Committed, snapshot_state: bytes) -> None:
        """Pin the interval that ends with a committed checkpoint; called on the writing thread."""
        if self.left <= 0:
            return
        # A replay cannot stop at a snapshot that was taken during validation.
        position = decode_values(snapshot_state)["position"]
        inside_validation = 0 < self._steps <= position["step_in_epoch"]
        if self._start is not None and done.step > self._start.step and not inside_validation:
            self._pin_interval(self._start, done)
        if self._order.which != "drawn" or done.epoch >= self._order.epoch:
            self._start = _Start(done.step, Path(str(done.path)))

    def unreported(self) -> list[IntervalPinned]:
        """Return the intervals pinned since the last call; called on the training thread."""
        return [self._pinned.popleft() for _ in range(len(self._pinned))]

    def keep_here(self, snapshot: Snapshot, trained_seconds: float) -> Committed | None:
        """Write a copy of a remote checkpoint on this disk; return None if none is needed."""
        if self.left <= 0:
            return None
        store = CheckpointStore(self._directory / "here", origin=self._origin)
        return store.commit(snapshot, trained_seconds=trained_seconds)

    def forget_here(self) -> None:
        """Remove the copies on this disk with which no interval starts."""
        for path in CheckpointStore(self._directory / "here").list():
            if self._start is None or path != self._start.path:
                CheckpointStore(path.parent).delete(path)

    def forget_start(self) -> None:
        """Make the next interval start with a later checkpoint."""
        self._start = None

    def close(self) -> None:
        """Remove the checkpoints that belong to no interval, at the end of the attempt."""
        for name in ("here", "middle"):
            free_pins(self._directory / name)

    def _pin_interval(self, start: _Start, end: Committed) -> None:
        self.left -= 1
        directory = self._directory / f"{start.step}-{end.step}"
        found = None if start.path is None else directory / "from" / start.path.name
        there = directory / "to" / end.path.name
        problem = None
        try:
            if directory.exists():
                shutil.rmtree(directory)
            if start.path is not None and found is not None:
                link_checkpoint(start.path, found)
            link_checkpoint(Path(str(end.path)), there)
        except OSError as error:
            problem = f"its checkpoints could not be pinned: {error}"
            shutil.rmtree(directory, ignore_errors=True)
        self._pinned.append(
            IntervalPinned(
                from_step=start.step,
                to_step=end.step,
                to_epoch=end.epoch,
                directory=str(directory),
                from_path=None if found is None else str(found),
                to_path=str(there),
                problem=problem,
            )
        )


class _Middle:
    """Store of the one checkpoint for the audit alone."""

    def __init__(self, pins: AuditPins) -> None:
        self._pins = pins
        self._store = CheckpointStore(pins._directory / "middle", origin=pins._origin)

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, let_go: bool = False
    ) -> Committed:
        try:
            done = self._store.commit(snapshot, trained_seconds=trained_seconds, let_go=let_go)
        except CheckpointError:
            # The next interval then starts with the trial's next own checkpoint.
            return Committed(snapshot.step, snapshot.epoch, "", 0, self._store.directory)
        self._pins._start = _Start(done.step, Path(str(done.path)))
        return done

    def delete(self, path: Location) -> None:
        self._store.delete(path)


class PinningStore:
    """Checkpoint store that pins each commit for audits before it returns.

    ``elsewhere`` is whether the trial's store is an object store.
    """

    def __init__(self, store: Store, pins: AuditPins, *, elsewhere: bool) -> None:
        self._store = store
        self._pins = pins
        self._elsewhere = elsewhere

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, let_go: bool = False
    ) -> Committed:
        """Commit ``snapshot``; errors of pinning are not raised.

        Raises:
            CheckpointError: It could not be committed.
        """
        here, state = None, snapshot.state_json
        if self._elsewhere:
            try:
                here = self._pins.keep_here(snapshot, trained_seconds)
            except CheckpointError:
                # Without a copy on this disk, no interval can end or start here.
                self._pins.forget_start()
        done = self._store.commit(snapshot, trained_seconds=trained_seconds, let_go=let_go)
        if not self._elsewhere:
            self._pins.pin(done, state)
        elif here is not None:
            self._pins.pin(here, state)
            self._pins.forget_here()
        return done

    def delete(self, path: Location) -> None:
        """Delete a checkpoint, but not its pinned links or copies."""
        self._store.delete(path)


def link_checkpoint(path: Path, target: Path) -> None:
    """Make ``target`` a copy of the checkpoint ``path``, by hard links where possible.

    Raises:
        OSError: A file could not be linked or copied.
    """
    _make(target)
    for file in sorted(path.iterdir()):
        try:
            os.link(file, target / file.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(file, target / file.name)


def _make(directory: Path) -> None:
    """Create the directory, although others may remove its empty parents at the same time."""
    for _ in range(_TRIES):
        try:
            directory.mkdir(parents=True)
        except FileNotFoundError:
            continue
        return
    directory.mkdir(parents=True)
