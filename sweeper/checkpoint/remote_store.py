"""Checkpoints of one attempt in an object store, each committed by its manifest.

An object store has no rename, and its listings may be out of date. But an object appears completely or
not at all, and is found by its name at once (see `remote_objects`). So a checkpoint exists when its
manifest exists. The steps of a commit, with their reasons:

1. The checkpoint is committed to this machine's disk, and the memory of its tensors is released. An
   upload may take long and may have to start again, and training must not hold a second copy of its
   variables meanwhile. There is at most one local copy, because one write is in flight. Its directory
   has a name that readers ignore; one that a killed process has left is removed by the next attempt.
2. The tensors and the state are uploaded below a new prefix. If the writer dies here, the remains are
   no checkpoint, because there is no manifest.
3. Both are queried by name, to check that their sizes are correct.
4. The manifest, with the sizes and digests of both, is uploaded in one request. Now the checkpoint
   exists and is announced.

A deletion removes the manifest first. Remains are removed by the trial's next attempt or by ``sweeper
gc``.

**Finding the newest checkpoint does not depend on listings.** The database contains the full names of
announced checkpoints, and the worker sends them to the next attempt (`Assignment.known`), which reads
them by name. Listings are used only for checkpoints whose announcement was lost because the worker died
together with its trial. If a listing does not show such a checkpoint, the attempt resumes from the
previous one, which takes time but does not change the result. A listed checkpoint that was deleted
meanwhile has no manifest and is skipped.

**One writer.** Each attempt writes below its own prefix. An attempt that has lost its lease without
noticing may continue to write there. Either the next attempt finds a newer complete checkpoint of the
same training, or it removes the unfinished upload, so that the check of step 3 fails. There is no lock
between that check and the manifest, so a manifest may name removed files. Such a checkpoint does not
verify: the next reader sets it aside and uses the previous one.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    Committed,
    LoadedCheckpoint,
    Snapshot,
)
from sweeper.checkpoint.identity import CheckpointName, Origin, unfinished_name
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.remote_objects import ObjectStore, is_transient, objects_at
from sweeper.checkpoint.remote_reading import (
    RemoteListing,
    advice_on_store,
    delete_remote,
    load_remote,
    remove_remote,
)
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location, RemotePath


class RemoteCheckpointStore:
    """Checkpoints of one attempt in an object store; the attempt is the prefix's only writer.

    Args:
        directory: Prefix of the checkpoints.
        spool: Directory of this machine for the local copy, created if missing; by default the
            system's directory for temporary files.
        origin: Origin for the manifests; None for checkpoints that are not resumed.
        objects: The object store; None for the protocol's.
    """

    def __init__(
        self,
        directory: RemotePath,
        *,
        spool: Path | None = None,
        origin: Origin | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        self.directory = directory
        self._origin = origin
        self._spool = Path(tempfile.gettempdir()) if spool is None else spool
        self._objects = objects or objects_at(directory)
        self._committed: set[CheckpointName] = set()
        self._deleted: set[CheckpointName] = set()

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, release: bool = False
    ) -> Committed:
        """Upload ``snapshot``, and return when its manifest is stored.

        An existing checkpoint of the step is kept, and the new one is its next revision.

        Args:
            snapshot: The snapshot.
            trained_seconds: Seconds of training before it, over all attempts.
            release: Whether to release each of the snapshot's tensors after it is on the local disk.

        Raises:
            CheckpointError: It cannot be stored: the local disk is full, or the store refuses or does
                not answer for minutes. Uploaded objects are removed if the store answers; earlier
                checkpoints are not changed.
        """
        scratch = self._spool / unfinished_name("writing", "upload")
        local = CheckpointStore(scratch, origin=self._origin, operations=_NotDurable())
        try:
            try:
                done = local.commit(snapshot, trained_seconds=trained_seconds, release=release)
            except CheckpointError as error:
                msg = f"the local copy for its upload: {error}"
                raise CheckpointError(msg) from error
            path = self._upload(scratch / done.path.name, done)
            return replace(done, path=path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def list(self) -> tuple[RemotePath, ...]:
        """Return the checkpoints, oldest first: those committed here, and those in a listing.

        Raises:
            CheckpointError: The store cannot be listed.
        """
        listed = {
            name
            for path in RemoteListing.of(self.directory, self._objects).whole()
            if (name := CheckpointName.parse(path.name)) is not None
        }
        return tuple(
            self.directory / str(name)
            for name in sorted((listed | self._committed) - self._deleted)
        )

    def load(self, path: RemotePath) -> LoadedCheckpoint:
        """Read and verify one checkpoint; see `load_remote` for its errors."""
        return load_remote(path, self._objects)

    def delete(self, path: Location) -> None:
        """Delete a checkpoint of this attempt or another.

        A trial may have earlier checkpoints on a disk; for these, see `CheckpointStore.delete`.

        Raises:
            CheckpointError: ``path`` does not have the name of a checkpoint, or cannot be removed.
        """
        if not isinstance(path, RemotePath):
            CheckpointStore(path.parent).delete(path)
            return
        name = delete_remote(path, self._objects)
        if path.parent == self.directory:
            self._deleted.add(name)

    def _upload(self, local: Path, done: Committed) -> RemotePath:
        """Upload the files of the checkpoint ``done`` in the directory ``local``, the manifest last."""
        path: RemotePath | None = None
        try:
            name = self._free_name(done.step)
            path = self.directory / str(name)
            self._objects.upload(path / TENSORS_FILE, local / TENSORS_FILE)
            self._objects.put(path / STATE_FILE, (local / STATE_FILE).read_bytes())
            for file in (TENSORS_FILE, STATE_FILE):
                self._check_arrived(path / file, (local / file).stat().st_size)
            self._objects.put(path / MANIFEST_FILE, (local / MANIFEST_FILE).read_bytes())
        except OSError as error:
            msg = (
                f"the checkpoint of step {done.step} cannot be written to {self.directory}: "
                f"{error}. It has {done.bytes} bytes; {advice_on_store(self.directory)}"
            )
            failure = CheckpointError(msg)
            if not is_transient(error):
                # After a temporary fault that lasted for minutes, removing would fail, too.
                self._discard(path, failure)
            raise failure from error
        except BaseException as error:
            self._discard(path, error)
            raise
        self._committed.add(name)
        return path

    def _free_name(self, step: int) -> CheckpointName:
        """Return the first free name for the step; each candidate is queried by name."""
        for revision in count(1):
            name = CheckpointName(step, revision)
            manifest = self.directory / str(name) / MANIFEST_FILE
            if name not in self._committed and not self._objects.exists(manifest):
                return name
        raise AssertionError  # pragma: no cover - count() has no end

    def _check_arrived(self, path: RemotePath, expected: int) -> None:
        seen = self._objects.size(path)
        if seen != expected:
            msg = f"{path} has {seen} bytes after its upload, expected {expected}"
            raise OSError(msg)

    def _discard(self, path: RemotePath | None, failure: BaseException) -> None:
        """Remove the uploaded objects; an error is added to ``failure`` as a note."""
        try:
            if path is not None:
                remove_remote(path, self._objects)
        except OSError as error:
            failure.add_note(f"{path} could not be removed either: {error}")


class _NotDurable(FileOperations):
    """Operations for files that are removed after their upload."""

    def fsync(self, descriptor: int) -> None: ...

    def fsync_directory(self, path: Path) -> None: ...


def open_store(
    directory: Location, *, spool: Path | None = None, origin: Origin | None = None
) -> CheckpointStore | RemoteCheckpointStore:
    """Return the store of an attempt's checkpoints.

    ``spool`` is a directory of this machine for files to upload.
    """
    if isinstance(directory, RemotePath):
        return RemoteCheckpointStore(directory, spool=spool, origin=origin)
    return CheckpointStore(directory, origin=origin)
