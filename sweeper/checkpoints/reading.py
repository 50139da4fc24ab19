"""Reading checkpoints: verified while they are read, falling back to the one before.

A reader trusts nothing that it has not hashed. What does not verify is renamed aside, so that it
is neither tried again nor counted, and stays for a person to look at. When it cannot be renamed
(a read-only disk), the fallback works all the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import xxhash

from sweeper.checkpoints.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    LoadedCheckpoint,
    Manifest,
    combine_digests,
)
from sweeper.checkpoints.names import CheckpointName, aside_name
from sweeper.checkpoints.operations import FileOperations, reading_lock
from sweeper.checkpoints.policy import KeptCheckpoint
from sweeper.checkpoints.tensors import Array, read_tensors
from sweeper.checkpoints.values import decode_values
from sweeper.errors import CheckpointError, CorruptCheckpointError

__all__ = ["list_checkpoints", "load_checkpoint", "load_newest", "read_kept", "read_manifest"]

Notice = Callable[[str], None]


def list_checkpoints(directory: Path) -> tuple[Path, ...]:
    """Return what is called a checkpoint in ``directory``, oldest first; nothing is opened.

    A directory that is not there has none.

    Raises:
        OSError: The directory cannot be read.
    """
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return ()
    named = ((CheckpointName.parse(entry.name), entry) for entry in entries)
    return tuple(path for _, path in sorted((name, path) for name, path in named if name))


def load_checkpoint(path: Path) -> LoadedCheckpoint:
    """Read one checkpoint, each of its bytes once, and verify all of it.

    A file that the manifest does not name is not opened and does no harm.

    Raises:
        CorruptCheckpointError: A file is missing, or is not what the manifest says; which one,
            what was seen and what was expected.
        CheckpointError: It is no checkpoint, cannot be read, or is of a later format.
    """
    name = CheckpointName.parse(path.name)
    if name is None:
        msg = f"{path} is not called as a checkpoint is; expected a directory like step-000000420"
        raise CheckpointError(msg)
    try:
        with reading_lock(path):
            return _load_locked(path, name)
    except OSError as error:
        if not path.is_dir():
            msg = f"the checkpoint {path} is gone, or is no directory"
            raise CheckpointError(msg) from error
        if error.errno == errno.ENOENT:
            msg = (
                f"{error.filename} is missing; expected {TENSORS_FILE}, {STATE_FILE} and "
                f"{MANIFEST_FILE} in a checkpoint"
            )
            raise CorruptCheckpointError(msg) from error
        msg = f"the checkpoint {path} cannot be read: {error}"
        raise CheckpointError(msg) from error


def load_newest(
    directories: Iterable[Path], notice: Notice, *, operations: FileOperations | None = None
) -> LoadedCheckpoint | None:
    """Load the newest checkpoint that verifies, of all attempts of a trial.

    Args:
        directories: Where each attempt keeps its checkpoints, in the attempts' order; those that
            are not there are passed over. Of two at one step the later attempt's is the newer.
        notice: Told of every one that was set aside or could not be used.
        operations: The file system, when it is not the system's own.

    Returns:
        The checkpoint, or None when there is none that verifies.

    Raises:
        CheckpointError: The newest is whole, and of a format that only a later version reads.
    """
    operations = operations or FileOperations()
    candidates: list[tuple[int, int, int, Path]] = []
    for order, directory in enumerate(directories):
        try:
            paths = list_checkpoints(directory)
        except OSError as error:
            notice(f"the checkpoints in {directory} cannot be listed ({error}); passing over them")
            continue
        for path in paths:
            name = CheckpointName.parse(path.name)
            if name is not None:
                candidates.append((name.step, order, name.revision, path))
    for *_, path in sorted(candidates, reverse=True):
        try:
            return load_checkpoint(path)
        except CorruptCheckpointError as error:
            aside = _set_aside(path, operations)
            notice(f"{error}. {aside}; going on with the checkpoint before it")
        except CheckpointError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            notice(f"{error}; going on with the checkpoint before it")
    return None


def read_kept(directories: Iterable[Path]) -> tuple[KeptCheckpoint, ...]:
    """Return what retention needs to know of every checkpoint, from the manifests alone.

    One whose manifest does not verify is among them with ``good=False``.

    Raises:
        OSError: A directory cannot be read.
    """
    kept: list[KeptCheckpoint] = []
    for directory in directories:
        for path in list_checkpoints(directory):
            try:
                manifest = read_manifest(path)
            except (OSError, CheckpointError):
                name = CheckpointName.parse(path.name)
                if name is not None and path.is_dir():
                    kept.append(KeptCheckpoint(name.step, 0, path, good=False))
                continue
            kept.append(
                KeptCheckpoint(
                    step=manifest.step,
                    epoch=manifest.epoch,
                    path=path,
                    metrics=manifest.metrics,
                    trained_seconds=manifest.trained_seconds,
                )
            )
    return tuple(sorted(kept, key=lambda k: k.step))


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint at ``path``, which says what its other files hold.

    Raises:
        OSError: It cannot be read.
        CheckpointError: It does not verify, or is of a later format.
    """
    return Manifest.parse((path / MANIFEST_FILE).read_bytes(), path / MANIFEST_FILE)


def _load_locked(path: Path, name: CheckpointName) -> LoadedCheckpoint:
    manifest_bytes = (path / MANIFEST_FILE).read_bytes()
    manifest = Manifest.parse(manifest_bytes, path / MANIFEST_FILE)
    if manifest.step != name.step:
        msg = f"{path / MANIFEST_FILE} is of step {manifest.step}, expected {name.step}"
        raise CorruptCheckpointError(msg)
    state = _read_state(path / STATE_FILE, manifest)
    tensors = _read_tensors(path / TENSORS_FILE, manifest)
    return LoadedCheckpoint(
        step=manifest.step,
        epoch=manifest.epoch,
        digest=manifest.digest,
        tensors=tensors,
        state=state,
        metrics=manifest.metrics,
        path=path,
        bytes=manifest.content_bytes + len(manifest_bytes),
        trained_seconds=manifest.trained_seconds,
    )


def _read_state(path: Path, manifest: Manifest) -> dict[str, object]:
    entry = manifest.file(STATE_FILE)
    text = path.read_bytes()
    _expect(path, "bytes", len(text), entry.size)
    _expect(path, "digest", xxhash.xxh3_128_hexdigest(text), entry.digest)
    state: dict[str, object] = decode_values(text)
    return state


def _read_tensors(path: Path, manifest: Manifest) -> dict[str, Array]:
    entry = manifest.file(TENSORS_FILE)
    _expect(path, "bytes", path.stat().st_size, entry.size)
    whole = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        try:
            tensors = read_tensors(file, entry.size, manifest.tensors, whole.update)
        except ValueError as error:
            msg = f"{path} is damaged: {error}"
            raise CorruptCheckpointError(msg) from error
    _expect(path, "digest", whole.hexdigest(), entry.digest)
    by_name = {tensor.name: tensor for tensor in manifest.tensors}
    combined = combine_digests([by_name[name] for name in manifest.digest_names])
    _expect(path, "digest of the training state", combined, manifest.digest)
    return tensors


def _expect(path: Path, what: str, seen: object, expected: object) -> None:
    if seen != expected:
        msg = f"{path} is damaged: {what} {seen}, expected {expected}"
        raise CorruptCheckpointError(msg)


def _set_aside(path: Path, operations: FileOperations) -> str:
    """Rename the damaged checkpoint, and say where it is now."""
    for attempt in count(1):
        target = path.with_name(aside_name(path.name, attempt))
        if not target.exists():
            break
    try:
        operations.rename(path, target)
    except OSError as error:
        return f"It could not be set aside ({error})"
    return f"It is set aside as {target.name}"
