"""One attempt's checkpoints in an object store: committed by their manifest, or not there.

An object store has no rename, and what it lists may be out of date. What it has is enough: an
object appears whole or not at all, and is found under its name at once (see `objects`). So the
manifest is the checkpoint. The order of a commit, and why each step is where it is:

1. The tensors go to a spool file on this machine's disk, hashed on the way, and are let go. An
   upload takes as long as the network takes, and may have to begin again: training must neither
   hold a second copy of its variables for so long, nor be asked for them again. The spool is
   bounded: one checkpoint, since one write is in flight, in a file without a name that goes with
   the process.
2. The tensors and the state are uploaded below a prefix that no manifest names. A writer that dies
   here leaves rubbish, never half a checkpoint.
3. Both are asked for by name, with their sizes. Whatever lost or cut them short is found out here.
4. The manifest, with the sizes and digests of both, in one request. At this moment the checkpoint
   exists, and only now is it announced.

A deletion runs backwards: the manifest goes first, and what is left is rubbish. Rubbish is swept by
the trial's next attempt, or by ``sweeper gc``.

**Finding the newest without trusting a listing.** What was announced stands in the database's rows
by its full name, and a worker hands those names to the attempt that goes on (`Assignment.known`).
They are read by name. A listing is a supplement, for checkpoints whose announcement was lost when
the worker died together with its trial: if the listing does not show one of these, the attempt goes
on from the one before it, which costs time and changes no result. A listed checkpoint that was
deleted meanwhile has no manifest, and is passed over.

**One writer.** Each attempt writes below its own prefix. An attempt that lost its lease, and does
not know it yet, goes on writing below its own, where the next attempt may find a newer whole
checkpoint of the same training; or it finds its unfinished upload swept away, and the check of step
3 fails it. Between that check and the manifest nothing holds the two together, for there is no
lock: a manifest may then name files that are gone. It does not verify, so it is set aside by the
next reader and the one before it is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

import xxhash

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    Committed,
    FileEntry,
    LoadedCheckpoint,
    Manifest,
    Snapshot,
)
from sweeper.checkpoint.identity import CheckpointName, Origin
from sweeper.checkpoint.remote_objects import ObjectStore, is_transient, objects_at
from sweeper.checkpoint.remote_reading import (
    RemoteListing,
    advise,
    delete_remote,
    load_remote,
    remove_remote,
)
from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.tensors import TensorEntry, TensorFile
from sweeper.errors import CheckpointError
from sweeper.support.paths import Location, RemotePath


class RemoteCheckpointStore:
    """The checkpoints of one attempt in an object store; the attempt is the prefix's only writer.

    Args:
        directory: The prefix that they lie below.
        spool: A directory of this machine for the spool file; made if need be. The system's own
            directory for temporary files by default.
        origin: Whose they are, for their manifests; None where nobody resumes from them.
        objects: The object store, when it is not the protocol's own.
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
        self._spool = spool
        self._objects = objects or objects_at(directory)
        self._committed: set[CheckpointName] = set()
        self._deleted: set[CheckpointName] = set()

    def commit(
        self, snapshot: Snapshot, *, trained_seconds: float = 0.0, let_go: bool = False
    ) -> Committed:
        """Upload ``snapshot`` and return when its manifest is stored.

        A step that is there already is kept, and the new one is its next revision.

        Args:
            snapshot: What to write.
            trained_seconds: Seconds of training before it, over all attempts.
            let_go: Take the snapshot's tensors from it, and let each go once it is in the spool.

        Raises:
            CheckpointError: It cannot be stored, or the spool's disk is full, or the store refuses
                or does not answer for minutes. What was uploaded is removed again if the store
                answers; earlier checkpoints are as they were.
        """
        tensors = TensorFile(
            snapshot.hand_over() if let_go else snapshot.tensors, snapshot.repeated
        )
        size = tensors.size
        with self._spool_file(snapshot.step, size) as spool:
            entries, digest = self._fill(spool, tensors, snapshot.step, size)
            state_digest = xxhash.xxh3_128_hexdigest(snapshot.state_json)
            manifest = Manifest.of(
                snapshot,
                origin=self._origin,
                trained_seconds=trained_seconds,
                files=(
                    FileEntry(TENSORS_FILE, size, digest),
                    FileEntry(STATE_FILE, len(snapshot.state_json), state_digest),
                ),
                tensors=entries,
            )
            path, manifest_bytes = self._upload(snapshot, manifest, spool)
        return Committed(
            step=snapshot.step,
            epoch=snapshot.epoch,
            digest=manifest.digest,
            bytes=manifest.content_bytes + manifest_bytes,
            path=path,
            metrics=snapshot.metrics,
            trained_seconds=trained_seconds,
        )

    def list(self) -> tuple[RemotePath, ...]:
        """Return the checkpoints, oldest first: those committed here, and what a listing shows.

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

    def delete(self, path: Location) -> bool:
        """Delete a checkpoint, of this attempt or another; always True.

        A trial that began with its checkpoints on a disk still has some there: those are deleted
        too, or kept (False) while somebody reads them.

        Raises:
            CheckpointError: ``path`` is not called as a checkpoint is, or cannot be removed.
        """
        if not isinstance(path, RemotePath):
            return CheckpointStore(path.parent).delete(path)
        name = delete_remote(path, self._objects)
        if path.parent == self.directory:
            self._deleted.add(name)
        return True

    @contextmanager
    def _spool_file(self, step: int, size: int) -> Iterator[BinaryIO]:
        try:
            if self._spool is not None:
                self._spool.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=self._spool)  # noqa: SIM115 - closed below
        except OSError as error:
            raise self._no_spool(error, step, size) from error
        with file:
            yield file

    def _fill(
        self, spool: BinaryIO, tensors: TensorFile, step: int, size: int
    ) -> tuple[tuple[TensorEntry, ...], str]:
        whole = xxhash.xxh3_128()

        def write(chunk: memoryview) -> None:
            whole.update(chunk)
            spool.write(chunk)

        try:
            entries = tensors.write(write)
            spool.flush()
        except OSError as error:
            raise self._no_spool(error, step, size) from error
        return entries, whole.hexdigest()

    def _upload(
        self, snapshot: Snapshot, manifest: Manifest, spool: BinaryIO
    ) -> tuple[RemotePath, int]:
        """Upload everything, the manifest last; return where, and the manifest's size."""
        path: RemotePath | None = None
        try:
            path = self._free_path(snapshot.step)
            self._objects.upload(path / TENSORS_FILE, spool, manifest.file(TENSORS_FILE).size)
            self._objects.put(path / STATE_FILE, snapshot.state_json)
            for entry in manifest.files:
                self._check_arrived(path / entry.name, entry.size)
            content = manifest.render()
            self._objects.put(path / MANIFEST_FILE, content)
        except OSError as error:
            msg = (
                f"the checkpoint of step {snapshot.step} cannot be written to {self.directory}: "
                f"{error}. It has {manifest.content_bytes} bytes; {advise(self.directory)}"
            )
            failure = CheckpointError(msg)
            if not is_transient(error):
                # A store that has not answered for minutes will not answer now.
                self._discard(path, failure)
            raise failure from error
        except BaseException as error:
            self._discard(path, error)
            raise
        self._committed.add(CheckpointName(snapshot.step, _revision(path)))
        return path, len(content)

    def _free_path(self, step: int) -> RemotePath:
        """Return the first free name for the step; each candidate is asked for by its name."""
        for revision in count(1):
            name = CheckpointName(step, revision)
            path = self.directory / str(name)
            if name not in self._committed and not self._objects.exists(path / MANIFEST_FILE):
                return path
        raise AssertionError  # pragma: no cover - count() has no end

    def _check_arrived(self, path: RemotePath, expected: int) -> None:
        seen = self._objects.size(path)
        if seen != expected:
            msg = f"{path} has {seen} bytes after its upload, expected {expected}"
            raise OSError(msg)

    def _discard(self, path: RemotePath | None, failure: BaseException) -> None:
        """Remove what was uploaded so far; what prevents that is noted on ``failure``."""
        try:
            if path is not None:
                remove_remote(path, self._objects)
        except OSError as error:
            failure.add_note(f"{path} could not be removed either: {error}")

    def _no_spool(self, error: OSError, step: int, size: int) -> CheckpointError:
        spool = self._spool or tempfile.gettempdir()
        msg = (
            f"the checkpoint of step {step} cannot be written to {spool} for its upload: {error}. "
            f"It needs about {size} bytes there; free some space, or move the runs directory "
            "(--runs-dir)"
        )
        return CheckpointError(msg)


def open_store(
    directory: Location, *, spool: Path | None = None, origin: Origin | None = None
) -> CheckpointStore | RemoteCheckpointStore:
    """Open the checkpoint store of the attempt whose checkpoints lie in ``directory``.

    Args:
        directory: One on a disk, or a prefix in an object store.
        spool: A directory of this machine, for what has to be uploaded.
        origin: Whose they are.
    """
    if isinstance(directory, RemotePath):
        return RemoteCheckpointStore(directory, spool=spool, origin=origin)
    return CheckpointStore(directory, origin=origin)


def _revision(path: RemotePath) -> int:
    name = CheckpointName.parse(path.name)
    return 1 if name is None else name.revision
