"""Writer that commits snapshots in a background thread while the training continues.

The training thread passes a snapshot, which only has references, and continues. Each write has a thread,
and at most one write is in flight; the next one waits for it. So at most one snapshot is in memory beside
the training's own state, however slow the disk is. An error of the thread is raised at the training's
next call, because a missing checkpoint would otherwise be noticed only when it is needed.

Commits and deletions are announced on the training thread, in the order in which they happened on disk.
So the worker never learns of a checkpoint that does not exist.
"""

import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.remote_store import Store
from sweeper.declarations.checkpointing import KeptCheckpoint, Retention
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location


class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """Writer of the snapshots of one attempt, which also applies the retention rules.

    Its methods must be called on the training thread. ``committed`` receives each durable checkpoint,
    ``deleted`` the path of each deleted one, and ``notify`` a message, once, for one that cannot be deleted.
    ``kept`` are existing checkpoints, also of earlier attempts, and ``trained_seconds`` those of the
    checkpoint from which the training resumed.
    """

    def __init__(
        self,
        store: Store,
        keep: Retention,
        committed: Callable[[KeptCheckpoint], None],
        deleted: Callable[[Location], None],
        *,
        notify: Callable[[str], None] = warnings.warn,
        kept: Iterable[KeptCheckpoint] = (),
        trained_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keep = keep
        self._committed = committed
        self._deleted = deleted
        self._notify = notify
        self._undeletable: set[Location] = set()
        self._kept = list(kept)
        self._history: Sequence[Mapping[str, float]] = ()
        self._clock = clock
        self._started_at = clock() - trained_seconds
        self._waiting: list[tuple[Snapshot, float]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._events: deque[KeptCheckpoint | Location | str] = deque()
        self._errors: deque[BaseException] = deque()

    @property
    def trained_seconds(self) -> float:
        """Return the seconds of training so far, over all attempts."""
        return self._clock() - self._started_at

    def submit(self, snapshot: Snapshot) -> None:
        """Wait for the write in flight, and pass ``snapshot`` to the thread.

        The caller must not keep references to its tensors, because each is released after it is
        written. After a failure of an earlier write it is not accepted; see `poll`.
        """
        if self._closed:
            raise CheckpointError(
                f"the writer is closed, so step {snapshot.step} cannot be written; make a new one"
            )
        self.flush()
        self._waiting = [(snapshot, self.trained_seconds)]
        self._thread = threading.Thread(
            target=self._run, name="sweeper-checkpoint-writer", daemon=True
        )
        self._thread.start()

    def poll(self) -> None:
        """Announce the commits and deletions since the last call, without waiting; raise an error of the thread."""
        while self._events:
            event = self._events.popleft()
            if isinstance(event, KeptCheckpoint):
                self._committed(event)
            elif isinstance(event, str):
                self._notify(event)
            else:
                self._deleted(event)
        if self._errors:
            raise self._errors.popleft()

    def flush(self) -> None:
        """Wait for the write in flight, and announce it; see `poll`."""
        if self._thread is not None:
            self._thread.join()
        self.poll()

    def close(self) -> None:
        """Wait for the write in flight, announce it and accept no other. Idempotent; see `poll`."""
        self._closed = True
        self.flush()

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

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            _let_go_of_locals(error)
            self._errors.append(error)

    def _write(self) -> None:
        committed = self._commit()
        self._kept.append(committed)
        self._events.append(committed)
        # Deleted only after the commit: a kill in between leaves one checkpoint too many, not one too few.
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

    def _commit(self) -> KeptCheckpoint:
        """Commit the waiting snapshot.

        Only this frame references the snapshot, which is freed when it returns.
        """
        snapshot, trained_seconds = self._waiting.pop()
        self._history = snapshot.history
        started = self._clock()
        committed = self._store.commit(snapshot, trained_seconds=trained_seconds)
        return replace(committed, written_seconds=self._clock() - started)


def _let_go_of_locals(error: BaseException) -> None:
    """Free the local variables of a stored error's frames, because a snapshot is as large as the model."""
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current = current.__cause__ or current.__context__
