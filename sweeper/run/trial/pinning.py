"""Pinning what an audit needs: the two checkpoints of an interval, out of retention's reach.

A trial pins in the thread that writes its checkpoints, right after one is committed and before
anything is deleted, by hard links where the file system can: what is pinned costs no time, and no
disk until the trial's own copy goes. Of checkpoints in an object store a second copy is written
here first. Each interval has a directory of its own, which goes whole when it has its verdict::

    trial-00000/audit/attempt-01/20-40/from/step-000000020/   the checkpoint to resume
                                 20-40/to/step-000000040/     what is to be found there

A pin that fails costs its audit and nothing else.
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
    """Start of the next interval: a checkpoint on this disk, or None for the beginning."""

    step: int
    path: Path | None


class AuditPins:
    """Pins the intervals of one attempt that its `AuditOrder` wants.

    Args:
        order: What is wanted.
        origin: Whose the checkpoints are that are written for the audit alone.

    Attributes:
        left: How many intervals are still to be pinned.
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
        """Note that training begins, or goes on from the checkpoint ``path``, at the position ``at``.

        Returns:
            The step from which on one more checkpoint is taken for the audit alone, in the middle
            of an epoch; 0 for none.
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
            # No step is in the middle of an epoch, so the beginning is where the first one starts.
            self._start = self._start or _Start(_BEGINNING, None)
            return 0
        self._start = None
        return at.step + max(1, steps_per_epoch // 2)

    @property
    def needs_middle(self) -> bool:
        """Return whether nothing is there yet that an interval could begin with."""
        return self._start is None

    @property
    def middle(self) -> Store:
        """Return where the checkpoint that is for the audit alone goes; it is where an interval begins."""
        return _Middle(self)

    def pin(self, done: Committed, snapshot_state: bytes) -> None:
        """Pin what ends, or begins, with a checkpoint that was committed; on the writing thread."""
        if self.left <= 0:
            return
        # A snapshot that was taken while validation ran is at a position that no replay stops at.
        position = decode_values(snapshot_state)["position"]
        inside_validation = 0 < self._steps <= position["step_in_epoch"]
        if self._start is not None and done.step > self._start.step and not inside_validation:
            self._pin_interval(self._start, done)
        if self._order.which != "drawn" or done.epoch >= self._order.epoch:
            self._start = _Start(done.step, Path(str(done.path)))

    def unreported(self) -> list[IntervalPinned]:
        """Return what was pinned since the last call; on the training thread."""
        found = []
        while self._pinned:
            found.append(self._pinned.popleft())
        return found

    def keep_here(self, snapshot: Snapshot, trained_seconds: float) -> Committed | None:
        """Write a second copy of what goes to an object store; None where nothing needs one."""
        if self.left <= 0:
            return None
        store = CheckpointStore(self._directory / "here", origin=self._origin)
        return store.commit(snapshot, trained_seconds=trained_seconds)

    def forget_here(self) -> None:
        """Remove the second copies that no interval begins with any more."""
        for path in CheckpointStore(self._directory / "here").list():
            if self._start is None or path != self._start.path:
                CheckpointStore(path.parent).delete(path)

    def forget_start(self) -> None:
        """The next interval begins with a checkpoint that is not yet written."""
        self._start = None

    def close(self) -> None:
        """The attempt is over: remove what is pinned for no interval."""
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
    """The store of the one checkpoint that is for the audit alone."""

    def __init__(self, pins: AuditPins) -> None:
        self._pins = pins
        self._store = CheckpointStore(pins._directory / "middle", origin=pins._origin)

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, let_go: bool = False
    ) -> Committed:
        try:
            done = self._store.commit(snapshot, trained_seconds=trained_seconds, let_go=let_go)
        except CheckpointError:
            # Nothing begins there then; the next checkpoint of the trial's own is the start.
            return Committed(snapshot.step, snapshot.epoch, "", 0, self._store.directory)
        self._pins._start = _Start(done.step, Path(str(done.path)))
        return done

    def delete(self, path: Location) -> bool:
        return self._store.delete(path)


class PinningStore:
    """A checkpoint store that has each commit pinned, as the audit wants it, before it returns."""

    def __init__(self, store: Store, pins: AuditPins, *, elsewhere: bool) -> None:
        self._store = store
        self._pins = pins
        self._elsewhere = elsewhere

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, let_go: bool = False
    ) -> Committed:
        """Commit ``snapshot``; what pinning it costs, or fails over, is no matter of the trial's.

        Raises:
            CheckpointError: It could not be committed.
        """
        here, state = None, snapshot.state_json
        if self._elsewhere:
            try:
                here = self._pins.keep_here(snapshot, trained_seconds)
            except CheckpointError:
                # Without a copy on this disk there is nothing to audit here; the trial goes on.
                self._pins.forget_start()
        done = self._store.commit(snapshot, trained_seconds=trained_seconds, let_go=let_go)
        if not self._elsewhere:
            self._pins.pin(done, state)
        elif here is not None:
            self._pins.pin(here, state)
            self._pins.forget_here()
        return done

    def delete(self, path: Location) -> bool:
        """Delete a checkpoint; what is pinned of it stays."""
        return self._store.delete(path)


def link_checkpoint(path: Path, target: Path) -> None:
    """Make ``target`` the same checkpoint as ``path``: by hard links, or else by copies.

    Raises:
        OSError: It cannot be.
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
    """Make the directory, although others may remove its parents just now, which are empty."""
    for _ in range(_TRIES):
        try:
            directory.mkdir(parents=True)
        except FileNotFoundError:
            continue
        return
    directory.mkdir(parents=True)
