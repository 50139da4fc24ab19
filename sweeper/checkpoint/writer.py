"""Background thread that commits snapshots while the training continues.

The training thread passes a snapshot, which only has references, and continues. At most one write is in
flight; the next one waits for it. So at most one snapshot is in memory beside the training's own state,
however slow the disk is. An error of the thread is raised at the training's next call, because a
missing checkpoint would otherwise be noticed only when it is needed.

Commits and deletions are announced on the training thread, in the order in which they happened on disk.
So the worker never learns of a checkpoint that does not exist.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from sweeper.checkpoint.format import Committed, Snapshot
from sweeper.errors import CheckpointError
from sweeper.spec.checkpointing import KeptCheckpoint, Retention
from sweeper.support.paths import Location

_LOG = logging.getLogger(__name__)


class Store(Protocol):
    """Interface of the stores on disk and in object stores; each method may raise `CheckpointError`."""

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, release: bool = False
    ) -> Committed:
        """Write the snapshot durably; with ``release``, release each tensor after it is written."""

    def list(self) -> tuple[Location, ...]:
        """Return the paths of the stored checkpoints."""

    def delete(self, path: Location) -> None:
        """Delete a checkpoint."""


class BackgroundWriter:
    """Writer of the snapshots of one attempt, which also applies the retention rules.

    Its methods must be called on the training thread.

    Args:
        store: Store of the checkpoints.
        keep: Retention rules.
        committed: Receives each durable checkpoint.
        deleted: Receives the path of each deleted checkpoint.
        warn: Receives a message for each checkpoint that cannot be deleted, once.
        kept: Existing checkpoints, including those of earlier attempts (see `read_kept`).
        trained_seconds: Seconds of training in the checkpoint from which the training resumed.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        store: Store,
        keep: Retention,
        committed: Callable[[Committed], None],
        deleted: Callable[[Location], None],
        *,
        warn: Callable[[str], None] = _LOG.warning,
        kept: Iterable[KeptCheckpoint] = (),
        trained_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keep = keep
        self._committed = committed
        self._deleted = deleted
        self._warn = warn
        self._undeletable: set[Location] = set()
        self._kept = list(kept)
        self._history: Sequence[Mapping[str, float]] = ()
        self._clock = clock
        self._begun = clock() - trained_seconds
        self._stalled = 0.0
        self._state = threading.Condition()
        self._waiting: tuple[Snapshot, float] | None = None
        self._busy = False
        self._closing = False
        self._events: deque[Committed | Location | str] = deque()
        self._errors: deque[BaseException] = deque()
        self._thread = threading.Thread(
            target=self._run, name="sweeper-checkpoint-writer", daemon=True
        )
        self._thread.start()

    @property
    def stalled_seconds(self) -> float:
        """Return for how many seconds the training thread has waited for the writer."""
        return self._stalled

    @property
    def trained_seconds(self) -> float:
        """Return the seconds of training so far, over all attempts."""
        return self._clock() - self._begun

    def submit(self, snapshot: Snapshot) -> None:
        """Wait for the write in flight, and pass ``snapshot`` to the thread.

        The caller must not keep references to its tensors, because each is released after it is
        written.

        Raises:
            CheckpointError: Writing an earlier snapshot failed (``snapshot`` is then not accepted), or
                the writer is closed.
        """
        if self._closing:
            msg = f"the writer is closed, so step {snapshot.step} cannot be written; make a new one"
            raise CheckpointError(msg)
        self.flush()
        with self._state:
            self._waiting = (snapshot, self.trained_seconds)
            self._busy = True
            self._state.notify_all()

    def poll(self) -> None:
        """Announce the commits and deletions since the last call, without waiting.

        Raises:
            CheckpointError: Writing failed.
        """
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Committed):
                self._committed(event)
            elif isinstance(event, str):
                self._warn(event)
            else:
                self._deleted(event)
        if self._errors:
            raise self._errors.popleft()

    def flush(self) -> None:
        """Wait for the write in flight, and announce it.

        Raises:
            CheckpointError: Writing failed.
        """
        self._wait()
        self.poll()

    def close(self) -> None:
        """Wait for the write in flight, announce it and end the thread. Idempotent.

        Raises:
            CheckpointError: Writing failed.
        """
        self._wait()
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()
        self.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as failure:
            error.add_note(f"and the checkpoint in flight failed: {failure}")

    def _wait(self) -> None:
        if not self._busy:
            return
        begun = self._clock()
        with self._state:
            self._state.wait_for(lambda: not self._busy)
        self._stalled += self._clock() - begun

    def _run(self) -> None:
        while self._await_work():
            try:
                self._write()
            except BaseException as error:
                _let_go_of_locals(error)
                self._errors.append(error)
            with self._state:
                self._busy = False
                self._state.notify_all()

    def _await_work(self) -> bool:
        with self._state:
            self._state.wait_for(lambda: self._waiting is not None or self._closing)
            return self._waiting is not None

    def _write(self) -> None:
        done = self._commit()
        self._kept.append(done)
        self._events.append(done)
        doomed = self._keep.select(self._kept, self._history)
        for checkpoint in [c for c in self._kept if c in doomed]:
            try:
                self._store.delete(checkpoint.path)
            except CheckpointError as error:
                if checkpoint.path not in self._undeletable:
                    self._undeletable.add(checkpoint.path)
                    self._events.append(
                        f"{error}; the training continues, and `sweeper gc` tries again"
                    )
                continue
            self._kept.remove(checkpoint)
            self._events.append(checkpoint.path)

    def _commit(self) -> Committed:
        """Commit the waiting snapshot.

        Only this frame references the snapshot, which is freed when it returns.
        """
        if self._waiting is None:
            msg = "no snapshot was submitted; submit one first"
            raise CheckpointError(msg)
        snapshot, trained_seconds = self._waiting
        self._waiting = None
        self._history = snapshot.history
        begun = self._clock()
        done = self._store.commit(snapshot, trained_seconds=trained_seconds, release=True)
        took = self._clock() - begun
        return replace(done, written_seconds=took)


def _let_go_of_locals(error: BaseException) -> None:
    """Free the local variables of a stored error's frames, because a snapshot is as large as the model."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
