"""File systems that fail on purpose, and stores that break a promise on purpose.

The faults sit behind `FileOperations`, the one place through which a commit touches the disk. The
broken stores are the negative controls: what a test of a promise must catch.
"""

import errno
import os
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np

from sweeper.checkpoint.format import Snapshot, combine_digests
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.tensors import TensorFile


def snapshot(step, *, fill=None, size=300):
    """Return a small snapshot whose every tensor says which step it is of."""
    value = float(step) if fill is None else fill
    return Snapshot(
        step=step,
        epoch=step // 10,
        tensors={
            "kernel": np.full((size,), value, np.float32),
            "iterations": np.array(step, np.int64),
            "seed": np.array([step, step + 1], np.uint32),
        },
        state={"wait": step, "best": float("inf"), "history": [{"loss": 1 / (step + 1)}]},
        metrics={"val_loss": 1.0 / (step + 1)},
        digest_names=("kernel", "iterations"),
    )


def digest(snapshot):
    """Return the digest that a checkpoint of the snapshot has."""
    entries = TensorFile(snapshot.tensors, snapshot.repeated).write(lambda _: None)
    by_name = {entry.name: entry for entry in entries}
    return combine_digests([by_name[n] for n in snapshot.digest_names if n in by_name])


def counted(of, name):
    """Return the operation ``name`` of the class ``of``, between `before` and `after`."""

    def call(self, *arguments):
        self._enter(name)
        result = getattr(of, name)(self, *arguments)
        self.after(name)
        return result

    return call


class CountingOperations(FileOperations):
    """Counts the operations and calls `before` and `after` at each."""

    def __init__(self):
        self.names = []

    def before(self, name): ...

    def after(self, name): ...

    make_directory = counted(FileOperations, "make_directory")
    create = counted(FileOperations, "create")
    fsync = counted(FileOperations, "fsync")
    fsync_directory = counted(FileOperations, "fsync_directory")
    rename = counted(FileOperations, "rename")

    def write(self, descriptor, data):
        self._enter("write")
        size = super().write(descriptor, data[: self.torn(len(data))])
        self.after("write")
        return size

    def torn(self, size):
        return size

    def close(self, descriptor):
        # A descriptor is closed even when close() reports an error, as the system call does.
        super().close(descriptor)
        self._enter("close")
        self.after("close")

    def remove_tree(self, path):
        with self._each("unlink", "remove"), self._each("rmdir", "remove_directory"):
            super().remove_tree(path)

    @contextmanager
    def _each(self, function, name):
        """Make each call of a function of `os` an operation: `shutil.rmtree` removes an entry by each."""
        call = getattr(os, function)

        def counted(*arguments, **options):
            self._enter(name)
            call(*arguments, **options)
            self.after(name)

        with patch.object(os, function, counted):
            yield

    def _enter(self, name):
        self.names.append(name)
        self.before(name)


def commit_two(store):
    return store.commit(snapshot(2))


def delete_one(store):
    return store.delete(store.directory / "step-000000001")


def killed_at(work, store):
    """Run ``work`` in a forked process and return its wait status."""
    with warnings.catch_warnings():
        # Later Pythons warn of threads that other tests left; this child only does file work.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            work(store)
        finally:
            os._exit(99)
    return os.waitpid(pid, 0)[1]


class AtOperation:
    """Ends something at the n-th operation: before it, after it, or half-way in a write."""

    def __init__(self, at, moment="before"):
        super().__init__()
        self._at = at
        self._moment = moment

    def before(self, name):
        if self._moment == "before":
            self._look()

    def after(self, name):
        if self._moment == "after" or (self._moment == "half" and name == "write"):
            self._look()

    def torn(self, size):
        return size // 2 if self._moment == "half" and len(self.names) == self._at else size

    def _look(self):
        if len(self.names) == self._at:
            self.end()

    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class KillingOperations(AtOperation, CountingOperations):
    """Kills this process at an operation."""


class FailingOperations(AtOperation, CountingOperations):
    """Raises an OSError before the n-th operation, once; the disk has 12345 bytes free."""

    def __init__(self, at, code=errno.ENOSPC):
        super().__init__(at)
        self._code = code

    def end(self):
        raise OSError(self._code, os.strerror(self._code))

    def free_bytes(self, path):
        return 12345


class PowerCut(BaseException):
    """The machine has no power; nothing may catch this but the test."""


class PowerCutOperations(CountingOperations):
    """Cuts the power before the n-th operation, and loses all that was not made durable.

    Files that were not fsynced become empty; what is in a directory that was not fsynced since
    it came there is gone; a rename in such a parent is undone, if ``undo_renames``.
    """

    def __init__(self, at, *, undo_renames):
        super().__init__()
        self._at = at
        self._undo_renames = undo_renames
        self._paths = {}
        self._unsynced = set()
        self._entries = set()
        self._renames = []

    def before(self, name):
        if len(self.names) >= self._at:
            if len(self.names) == self._at:
                self.lose()
            raise PowerCut

    def create(self, path):
        descriptor = super().create(path)
        self._paths[descriptor] = path
        self._unsynced.add(path)
        self._entries.add(path)
        return descriptor

    def write(self, descriptor, data):
        self._unsynced.add(self._paths[descriptor])
        return super().write(descriptor, data)

    def fsync(self, descriptor):
        super().fsync(descriptor)
        self._unsynced.discard(self._paths[descriptor])

    def fsync_directory(self, path):
        super().fsync_directory(path)
        self._entries = {entry for entry in self._entries if entry.parent != path}
        self._renames = [(s, t) for s, t in self._renames if t.parent != path]

    def rename(self, source, target):
        super().rename(source, target)
        self._renames.append((source, target))
        for paths in (self._unsynced, self._entries):
            moved = {path for path in paths if path.parent == source}
            paths.difference_update(moved)
            paths.update(target / path.name for path in moved)

    def lose(self):
        """Lose what is not durable. A rename may stand or not: the file system decides."""
        for path in filter(Path.exists, self._unsynced):
            os.truncate(path, 0)
        for entry in self._entries:
            entry.unlink(missing_ok=True)
        if self._undo_renames:
            for source, target in reversed(self._renames):
                target.rename(source)


class OverwritingStore(CheckpointStore):
    """Broken: writes under the final name, with no temporary directory."""

    def _rename_to_final_name(self, temporary, step):
        return temporary

    def _temporary_directory(self, step):
        return self.directory / str(CheckpointName(step))
