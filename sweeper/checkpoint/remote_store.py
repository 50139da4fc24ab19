"""Checkpoints in an object store, each committed by its manifest.

An object store has no rename. But an object appears completely or not at all (see `remote_objects`). So
a checkpoint exists when its manifest exists. The steps of a commit, with their reasons:

1. The checkpoint is committed to this machine's disk, and the memory of its tensors is released. An
   upload may take long and may have to start again, and training must not hold a second copy of its
   variables meanwhile. There is at most one local copy, because one write is in flight. Its directory
   has a name that readers ignore; one that a killed process has left is removed by the next attempt.
2. The tensors and the state are uploaded below a new prefix. If the writer dies here, the remains are
   no checkpoint; the trial's next attempt or ``sweeper gc`` removes them.
3. Both are queried by name, to check that their sizes are correct.
4. The manifest, with the sizes and digests of both, is uploaded in one request. Now the checkpoint
   exists and is announced.

**Finding the newest checkpoint does not depend on listings.** The database contains the full names of
announced checkpoints, and the worker sends them to the next attempt (`Assignment.known`), which reads
them by name. Listings are used only for checkpoints whose announcement was lost because the worker died
together with its trial. A listed checkpoint that was deleted meanwhile has no manifest and is skipped.

**One writer.** Each attempt writes below its own prefix. An attempt that has lost its lease without
noticing may continue to write there. Either the next attempt finds a newer complete checkpoint of the
same training, or it removes the unfinished upload, so that the check of step 3 fails. There is no lock
between that check and the manifest, so a manifest may name removed files. Such a checkpoint does not
verify: the next reader sets it aside and uses the previous one.
"""

import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    Snapshot,
    checkpoint_name,
)
from sweeper.checkpoint.identity import CheckpointName, Origin, unfinished_name
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.remote_objects import advice_on_store, list_remote, objects_at
from sweeper.checkpoint.store import CheckpointStore
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location, RemotePath


class RemoteCheckpointStore:
    """Checkpoints of one attempt in an object store; the attempt is the only writer below the prefix.

    ``spool`` is a directory of this machine for the local copy, created if missing; by default the system's
    directory for temporary files.
    """

    def __init__(
        self,
        directory: RemotePath,
        *,
        spool: Path | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.directory = directory
        self._origin = origin
        self._spool = Path(tempfile.gettempdir()) if spool is None else spool
        self._objects = objects_at(directory)
        self._last = CheckpointName(0, 0)

    def commit(self, snapshot: Snapshot, *, trained_seconds: float = 0.0) -> KeptCheckpoint:
        """Upload ``snapshot``, and return when its manifest is stored; see `CheckpointStore.commit`.

        It cannot be stored if the local disk is full, or the store refuses or does not answer for minutes.
        """
        scratch = self._spool / unfinished_name("writing", "upload")
        local = CheckpointStore(scratch, origin=self._origin, operations=_NotDurable())
        try:
            try:
                committed = local.commit(snapshot, trained_seconds=trained_seconds)
            except CheckpointError as error:
                raise CheckpointError(f"the local copy for its upload: {error}") from error
            try:
                return replace(
                    committed, path=self._upload(scratch / committed.path.name, committed.step)
                )
            except OSError as error:
                raise CheckpointError(
                    f"the checkpoint of step {committed.step} cannot be written to {self.directory}: "
                    f"{error}. It has {committed.bytes} bytes; {advice_on_store(self.directory)}"
                ) from error
        finally:
            # An error here must not hide that of the commit; the next attempt removes what remains.
            shutil.rmtree(scratch, ignore_errors=True)

    def list(self) -> tuple[RemotePath, ...]:
        return list_remote(self.directory)

    def delete(self, path: Location) -> None:
        """Delete a checkpoint of this attempt or another, which may be on a disk; see `CheckpointStore.delete`."""
        CheckpointStore(self._spool).delete(path)

    def _upload(self, local: Path, step: int) -> RemotePath:
        """Upload the files in the directory ``local`` below the first free name of the step, the manifest last."""
        path = self._free_path(step)
        files = (TENSORS_FILE, STATE_FILE)
        for file in files:
            self._objects.upload(path / file, local / file)
        for file in files:
            size = self._objects.size(path / file)
            expected = (local / file).stat().st_size
            if size != expected:
                raise OSError(
                    f"{path / file} has {size} bytes after its upload, expected {expected}"
                )
        self._objects.upload(path / MANIFEST_FILE, local / MANIFEST_FILE)
        self._last = checkpoint_name(path)
        return path

    def _free_path(self, step: int) -> RemotePath:
        """Return the first free prefix of the step after this store's last one."""
        later = self._last.revision if self._last.step == step else 0
        for revision in count(later + 1):
            path = self.directory / str(CheckpointName(step, revision))
            if self._objects.size(path / MANIFEST_FILE) is None:
                break
        return path


class _NotDurable(FileOperations):
    """Operations for files that are removed after their upload."""

    def fsync(self, descriptor: int) -> None: ...

    def fsync_directory(self, path: Path) -> None: ...


Store = CheckpointStore | RemoteCheckpointStore


def open_store(
    directory: Location, *, spool: Path | None = None, origin: Origin | None = None
) -> Store:
    """Return the store of an attempt's checkpoints.

    ``spool`` is a directory of this machine for files to upload.
    """
    if isinstance(directory, RemotePath):
        return RemoteCheckpointStore(directory, spool=spool, origin=origin)
    return CheckpointStore(directory, origin=origin)
