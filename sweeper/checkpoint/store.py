"""Checkpoints of one attempt on disk, committed and deleted atomically.

The steps of a commit, with their reasons:

1. A directory is created with a name that readers ignore. If the writer dies, the remains are not
   mistaken for a checkpoint.
2. The three files are written and fsynced, the manifest last. On some file systems a rename may become
   durable before the data; without fsync, a power cut could leave the final name with empty files.
3. The directory is fsynced, because its entries are separate data.
4. The directory is renamed. Readers see all files or none; from now on the checkpoint exists.
5. The parent is fsynced. Before that, a power cut could undo the rename, so the checkpoint is announced
   only now: the database must not list a checkpoint that may disappear.

A deletion renames the directory, fsyncs the parent, and only then removes the files, so that a partly
removed checkpoint never has the name of a checkpoint.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import xxhash

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    FileEntry,
    Manifest,
    Snapshot,
    checkpoint_name,
    combine_digests,
)
from sweeper.checkpoint.identity import (
    CheckpointName,
    Origin,
    is_marked_corrupt,
    is_unfinished,
    unfinished_name,
)
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.reading import list_checkpoints, list_local
from sweeper.checkpoint.tensors import TensorFile
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location, RemotePath

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MANIFEST_ESTIMATE = 4096
"""Bytes, for the error of a full disk, which is raised before there is a manifest."""


class CheckpointStore:
    """Checkpoints of one attempt on disk; the attempt is the only writer of the directory.

    The directory is created at the first commit. Checkpoints that are not resumed need no ``origin``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        origin: Origin | None = None,
        operations: FileOperations | None = None,
    ) -> None:
        self.directory = directory
        self._origin = origin
        self._operations = operations or FileOperations()

    def commit(self, snapshot: Snapshot, *, trained_seconds: float = 0.0) -> KeptCheckpoint:
        """Write ``snapshot``, and return when it is durable.

        An existing checkpoint of the step is kept, and the new one is its next revision, which readers
        prefer. Each tensor of the snapshot is released after it is written.

        Raises:
            CheckpointError: It cannot be stored: the disk is full, read-only or broken. Written files
                are removed; earlier checkpoints are not changed.
        """
        tensors = TensorFile(snapshot.hand_over(), snapshot.repeated)
        needed = tensors.size + len(snapshot.state_json) + _MANIFEST_ESTIMATE
        temporary = self._temporary_directory(snapshot.step)
        try:
            self._ensure_directory(self.directory)
            self._operations.make_directory(temporary)
            manifest, size = self._write_files(temporary, snapshot, tensors, trained_seconds)
            self._operations.fsync_directory(temporary)
            path = self._rename_to_final_name(temporary, snapshot.step)
            self._operations.fsync_directory(self.directory)
        except OSError as error:
            failure = self._explain(error, snapshot.step, needed)
            self._discard(temporary, failure)
            raise failure from error
        except BaseException as error:
            self._discard(temporary, error)
            raise
        return manifest.kept(path, size=size)

    def list(self) -> tuple[Location, ...]:
        return list_checkpoints(self.directory)

    def delete(self, path: Location) -> None:
        """Delete a checkpoint of this attempt or another, or one that is marked as damaged.

        A process that reads it has its files open, and reads them to their end. A trial may have
        earlier checkpoints in an object store; these can be deleted, too.

        Raises:
            CheckpointError: ``path`` does not have the name of a checkpoint, or cannot be removed.
        """
        if isinstance(path, RemotePath):
            from sweeper.checkpoint.remote_objects import delete_remote

            delete_remote(path)
            return
        if CheckpointName.parse(path.name) is None and not is_marked_corrupt(path.name):
            raise CheckpointError(
                f"{path} does not have the name of a checkpoint, so it is not deleted"
            )
        aside = path.with_name(unfinished_name("deleting", path.name))
        try:
            self._operations.rename(path, aside)
            self._operations.fsync_directory(path.parent)
            self._operations.remove_tree(aside)
        except FileNotFoundError:
            # Another process has deleted it.
            return
        except OSError as error:
            raise CheckpointError(f"the checkpoint {path} cannot be deleted: {error}") from error

    def _temporary_directory(self, step: int) -> Path:
        return self.directory / unfinished_name("writing", str(CheckpointName(step)))

    def _write_files(
        self, temporary: Path, snapshot: Snapshot, tensors: TensorFile, trained_seconds: float
    ) -> tuple[Manifest, int]:
        with self._file(temporary / TENSORS_FILE) as tensors_file:
            entries = tensors.write(tensors_file.write)
        with self._file(temporary / STATE_FILE) as state_file:
            state_file.write(memoryview(snapshot.state_json))
        by_name = {entry.name: entry for entry in entries}
        digested = tuple(name for name in snapshot.digest_names if name in by_name)
        manifest = Manifest(
            step=snapshot.step,
            epoch=snapshot.epoch,
            digest=combine_digests([by_name[name] for name in digested]),
            digest_names=digested,
            metrics=snapshot.metrics,
            trained_seconds=trained_seconds,
            files=(tensors_file.entry(), state_file.entry()),
            tensors=entries,
            origin=self._origin,
        )
        with self._file(temporary / MANIFEST_FILE) as manifest_file:
            manifest_file.write(memoryview(manifest.render()))
        return manifest, manifest_file.size

    @contextmanager
    def _file(self, path: Path) -> Iterator[_HashedFile]:
        """Context manager for a new file, which is durable when the block ends without an error."""
        descriptor = self._operations.create(path)
        try:
            yield _HashedFile(path.name, descriptor, self._operations)
            self._operations.fsync(descriptor)
        finally:
            self._operations.close(descriptor)

    def _rename_to_final_name(self, temporary: Path, step: int) -> Path:
        """Rename the directory to the first free name of its step, and return that path."""
        names = [checkpoint_name(path) for path in list_local(self.directory)]
        newest = max((name.revision for name in names if name.step == step), default=0)
        for revision in count(newest + 1):
            path = self.directory / str(CheckpointName(step, revision))
            try:
                self._operations.rename(temporary, path)
                break
            except OSError as error:
                # The name may have been taken since the listing.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        return path

    def _ensure_directory(self, directory: Path) -> None:
        """Create the directory and its parents; each is durable before something is created in it."""
        if directory.is_dir():
            return
        if directory.parent != directory:
            self._ensure_directory(directory.parent)
        try:
            self._operations.make_directory(directory)
        except FileExistsError as error:
            if not directory.is_dir():
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory)
                ) from error
        self._operations.fsync_directory(directory.parent)

    def _discard(self, temporary: Path, failure: BaseException) -> None:
        """Remove the written files; an error is added to ``failure`` as a note."""
        try:
            if temporary.is_dir():
                self._operations.remove_tree(temporary)
        except OSError as error:
            failure.add_note(f"{temporary} could not be removed either: {error}")

    def _explain(self, error: OSError, step: int, needed: int) -> CheckpointError:
        try:
            free = f"{self._operations.free_bytes(self.directory)} bytes are free"
        except OSError as unknown:
            free = f"the free space is unknown: {unknown}"
        advice = "make the directory writable, or move the runs directory (--runs-dir)"
        if error.errno in _FULL:
            advice = (
                "free some space (sweeper gc), keep fewer checkpoints, or move the runs directory"
            )
        msg = (
            f"the checkpoint of step {step} cannot be written to {self.directory}: {error}. "
            f"It needs about {needed} bytes, and {free}; {advice}"
        )
        return CheckpointError(msg)


def sweep_leftovers(directory: Location) -> tuple[Location, ...]:
    """Remove the unfinished work in an attempt's ``directory``; return the removed paths.

    The attempt must have ended. A process that has lost its lease without noticing fails at its next commit.
    """
    if isinstance(directory, RemotePath):
        from sweeper.checkpoint.remote_objects import sweep_remote

        return sweep_remote(directory)
    operations = FileOperations()
    removed = []
    try:
        for path in leftovers(directory):
            operations.remove_tree(path)
            removed.append(path)
    except OSError as error:
        raise CheckpointError(
            f"an unfinished checkpoint in {directory} cannot be removed: {error}; remove it by hand"
        ) from error
    return tuple(removed)


def leftovers(directory: Path) -> list[Path]:
    """Return the paths that `sweep_leftovers` would remove from a directory of this machine."""
    paths = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in paths if is_unfinished(path.name))


class _HashedFile:
    def __init__(self, name: str, descriptor: int, operations: FileOperations) -> None:
        self.name = name
        self._descriptor = descriptor
        self.size = 0
        self._operations = operations
        self._digest = xxhash.xxh3_128()

    def write(self, data: memoryview) -> None:
        self._digest.update(data)
        self.size += len(data)
        while data:
            data = data[self._operations.write(self._descriptor, data) :]

    def entry(self) -> FileEntry:
        return FileEntry(self.name, self.size, self._digest.hexdigest())
