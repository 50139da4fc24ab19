"""One checkpoint read whole, every byte of it hashed, wherever its files lie.

The manifest verifies by itself, and says what the two other files must be. Nothing that it does not
name is opened.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import xxhash

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    LoadedCheckpoint,
    Manifest,
    combine_digests,
    decode_values,
)
from sweeper.checkpoint.identity import CheckpointName
from sweeper.checkpoint.tensors import Array, read_tensors
from sweeper.errors import CheckpointError, CorruptCheckpointError
from sweeper.support.paths import Location

LARGEST_MANIFEST = 256 << 20
"""Bytes. A tensor takes some 150, and no training has a million of them."""


class CheckpointFiles(Protocol):
    """The files of one checkpoint.

    Each method raises OSError, FileNotFoundError for none; and CorruptCheckpointError for what is
    no file at all.
    """

    @property
    def path(self) -> Location:
        """Return the checkpoint's path."""
        ...

    def read(self, name: str) -> bytes:
        """Read the whole of a small file; its size was checked before."""
        ...

    def size(self, name: str) -> int:
        """Return a file's size in bytes."""
        ...

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Give a file to be read once, from its beginning to its end."""
        ...


def checkpoint_name(path: Location) -> CheckpointName:
    """Return what the checkpoint is called.

    Raises:
        CheckpointError: It is not called as a checkpoint is.
    """
    name = CheckpointName.parse(path.name)
    if name is None:
        msg = f"{path} does not have the name of a checkpoint; expected a directory like step-000000420"
        raise CheckpointError(msg)
    return name


def manifest_of(files: CheckpointFiles) -> tuple[Manifest, int]:
    """Read and verify the manifest; return it with its size in bytes.

    Raises:
        CorruptCheckpointError: It is none; says what was seen.
        CheckpointError: It is of a later format.
        OSError: It is missing, or cannot be read.
    """
    path = files.path / MANIFEST_FILE
    size = files.size(MANIFEST_FILE)
    if size > LARGEST_MANIFEST:
        msg = f"{path} is not a manifest: it has {size} bytes, expected at most {LARGEST_MANIFEST}"
        raise CorruptCheckpointError(msg)
    return Manifest.parse(files.read(MANIFEST_FILE), path), size


def read_verified(files: CheckpointFiles) -> LoadedCheckpoint:
    """Read one checkpoint, each of its bytes once, and verify all of it.

    Raises:
        CorruptCheckpointError: A file is not what the manifest says; which one, what was seen and
            what was expected.
        CheckpointError: It is of a later format, or not called as a checkpoint is.
        OSError: A file is missing, or cannot be read.
    """
    path, name = files.path, checkpoint_name(files.path)
    manifest, manifest_bytes = manifest_of(files)
    if manifest.step != name.step:
        msg = f"{path / MANIFEST_FILE} has step {manifest.step}, expected {name.step}"
        raise CorruptCheckpointError(msg)
    state = _read_state(files, manifest)
    tensors = _read_tensors(files, manifest)
    return LoadedCheckpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        digest=manifest.digest,
        tensors=tensors,
        state=state,
        metrics=manifest.metrics,
        path=path,
        bytes=manifest.content_bytes + manifest_bytes,
        trained_seconds=manifest.trained_seconds,
        origin=manifest.origin,
    )


def _read_state(files: CheckpointFiles, manifest: Manifest) -> dict[str, object]:
    path, entry = files.path / STATE_FILE, manifest.file(STATE_FILE)
    _expect(path, "bytes", files.size(STATE_FILE), entry.size)
    text = files.read(STATE_FILE)
    _expect(path, "bytes", len(text), entry.size)
    _expect(path, "digest", xxhash.xxh3_128_hexdigest(text), entry.digest)
    try:
        state: dict[str, object] = decode_values(text)
    except ValueError as error:
        msg = f"{path} is damaged: {error}"
        raise CorruptCheckpointError(msg) from error
    return state


def _read_tensors(files: CheckpointFiles, manifest: Manifest) -> dict[str, Array]:
    path, entry = files.path / TENSORS_FILE, manifest.file(TENSORS_FILE)
    _expect(path, "bytes", files.size(TENSORS_FILE), entry.size)
    whole = xxhash.xxh3_128()
    with files.open(TENSORS_FILE) as file:
        try:
            tensors = read_tensors(file, entry.size, manifest.tensors, whole.update)
        except (ValueError, OverflowError) as error:
            msg = f"{path} is damaged: {error}"
            raise CorruptCheckpointError(msg) from error
    _expect(path, "digest", whole.hexdigest(), entry.digest)
    by_name = {tensor.name: tensor for tensor in manifest.tensors}
    combined = combine_digests([by_name[name] for name in manifest.digest_names])
    _expect(path, "digest of the training state", combined, manifest.digest)
    return tensors


def _expect(path: Location, what: str, seen: object, expected: object) -> None:
    if seen != expected:
        msg = f"{path} is damaged: {what} {seen}, expected {expected}"
        raise CorruptCheckpointError(msg)
