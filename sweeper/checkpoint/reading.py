"""Reading of checkpoints, which are verified while they are read, with a fallback to the previous one.

A checkpoint that does not verify is renamed, so that it is neither tried again nor counted by
retention, and the user can inspect it. If it cannot be renamed (a read-only disk), the fallback works
nevertheless.

A checkpoint is in a directory, or below a prefix in an object store; `remote_objects` is imported only
for the latter.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from sweeper.checkpoint.format import (
    MANIFEST_FILE,
    STATE_FILE,
    TENSORS_FILE,
    LoadedCheckpoint,
    Manifest,
    checkpoint_name,
    read_verified,
)
from sweeper.checkpoint.identity import CheckpointName, Origin
from sweeper.declarations.checkpointing import KeptCheckpoint
from sweeper.errors import CheckpointError, CorruptCheckpointError, ForeignCheckpointError
from sweeper.support.paths import Location, RemotePath, attempt_of, scratch_directory

Notify = Callable[[str], None]

_PASSED_OVER = (errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors that concern one checkpoint only: it is missing, or the disk has a bad sector there."""


def list_checkpoints(directory: Location) -> tuple[Location, ...]:
    """Return the paths in ``directory`` with names of checkpoints, oldest first, without opening any.

    A missing directory has none. Of an error of a directory, ``__cause__`` is an `OSError`.
    """
    if isinstance(directory, RemotePath):
        from sweeper.checkpoint.remote_objects import list_remote

        return list_remote(directory)
    try:
        return list_local(directory)
    except OSError as error:
        # Such a directory must not be treated as an empty one.
        raise CheckpointError(
            f"the checkpoints in {directory} cannot be listed: {error}; check the disk and its "
            "permissions, then resume"
        ) from error


def list_local(directory: Path) -> tuple[Path, ...]:
    """Return the same as `list_checkpoints`, for a directory of this machine; errors are `OSError`s."""
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return ()
    named = ((CheckpointName.parse(entry.name), entry) for entry in entries)
    return tuple(path for _, path in sorted((name, path) for name, path in named if name))


def load_checkpoint(path: Location) -> LoadedCheckpoint:
    """Read and verify one checkpoint; each byte is read once.

    Raises:
        CorruptCheckpointError: A file is missing or differs from the manifest.
        CheckpointError: It is no checkpoint, has a later format, or ``__cause__`` is an `OSError`.
    """
    checkpoint_name(path)
    # All files are opened before any is read: a deletion meanwhile removes only their names.
    with _opened(path, MANIFEST_FILE, STATE_FILE, TENSORS_FILE) as files:
        return read_verified(path, files)


def load_newest(
    directories: Iterable[Location],
    notify: Notify,
    *,
    known: Iterable[Location] = (),
    origin: Origin | None = None,
) -> LoadedCheckpoint | None:
    """Return the newest checkpoint that verifies, of all attempts of a trial; None if none does.

    The ``directories`` of the attempts are in order: of two checkpoints at one step, that of the later attempt is
    newer. ``known`` are announced checkpoints, which are read by name even if a listing does not show them.
    Without an ``origin`` any is accepted. ``notify`` receives a message for each one that could not be used.

    Raises:
        ForeignCheckpointError: The newest belongs to another study or trial.
        CheckpointError: The newest has a later format; or a disk or an object store that may contain
            a newer one cannot be read.
    """
    directories = list(directories)
    announced = list(known)
    tried: set[Location] = set()
    vanished = True
    # An attempt that has lost its lease may delete a listed checkpoint, after it has written a newer one.
    while vanished:
        vanished = False
        for path in _newest_first(directories, announced):
            if path in tried:
                continue
            tried.add(path)
            try:
                loaded = load_checkpoint(path)
            except CorruptCheckpointError as error:
                aside = _mark_corrupt(path)
                notify(f"{error}. {aside}; using the checkpoint before it")
            except CheckpointError as error:
                if not _is_passed_over(path, error):
                    raise
                vanished = vanished or isinstance(error.__cause__, FileNotFoundError)
                if isinstance(path, Path):
                    notify(f"{error}; using the checkpoint before it")
            else:
                if origin is None or _is_of(path, loaded.origin, origin):
                    return loaded
                notify(f"the checkpoint {path} does not name its owner; using the one before it")
    return None


def read_kept(
    directories: Iterable[Location],
    known: Iterable[Location] = (),
    *,
    origin: Origin | None = None,
) -> tuple[KeptCheckpoint, ...]:
    """Return the data that retention needs of every checkpoint, from the manifests alone; see `load_newest`.

    A checkpoint whose manifest does not verify has ``good=False``.
    """
    checkpoints: list[KeptCheckpoint] = []
    listed = [path for directory in directories for path in list_checkpoints(directory)]
    for path in dict.fromkeys([*listed, *known]):
        try:
            manifest = read_manifest(path)
            if origin is None or _is_of(path, manifest.origin, origin):
                checkpoints.append(manifest.kept(path))
        except ForeignCheckpointError:
            raise
        except CheckpointError as error:
            if isinstance(error.__cause__, OSError) and not _is_passed_over(path, error):
                raise
            if _exists(path, error.__cause__):
                checkpoints.append(KeptCheckpoint(checkpoint_name(path).step, 0, path, good=False))
    return tuple(sorted(checkpoints, key=lambda k: k.step))


def read_manifest(path: Location) -> Manifest:
    """Return the manifest of the checkpoint at ``path``; see `load_checkpoint` for errors."""
    return Manifest.parse(read_file(path, MANIFEST_FILE), path / MANIFEST_FILE)


def read_file(path: Location, name: str) -> bytes:
    """Return the content of a file of the checkpoint at ``path``; see `load_checkpoint` for errors."""
    with _opened(path, name) as files:
        return files[name].read()


@contextmanager
def _opened(path: Location, *names: str) -> Iterator[Mapping[str, BinaryIO]]:
    """Context manager that opens these files of the checkpoint at ``path``, downloaded if it is remote."""
    try:
        with ExitStack() as stack:
            if isinstance(path, Path):
                directory = path
            else:
                directory = stack.enter_context(_downloaded(path, names))
            paths = {name: directory / name for name in names}
            yield {n: stack.enter_context(p.open("rb", buffering=0)) for n, p in paths.items()}
    except OSError as error:
        if not _exists(path, error):
            raise CheckpointError(
                f"the checkpoint {path} is missing, or is not a directory"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise CorruptCheckpointError(
                f"{error.filename} is missing; expected {TENSORS_FILE}, {STATE_FILE} and "
                f"{MANIFEST_FILE} in a checkpoint",
                error.filename or path,
            ) from error
        advice = "check the disk and its permissions"
        if isinstance(path, RemotePath):
            from sweeper.checkpoint.remote_objects import advice_on_store

            advice = advice_on_store(path)
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}; {advice}") from error


@contextmanager
def _downloaded(path: RemotePath, names: Sequence[str]) -> Iterator[Path]:
    from sweeper.checkpoint.remote_objects import objects_at

    with ExitStack() as stack:
        try:
            directory = stack.enter_context(scratch_directory("download"))
        except OSError as error:
            # A full disk is reported as a missing directory, and would be taken for a missing object.
            msg = f"there is no directory for its download ({error}); TMPDIR names another"
            raise OSError(errno.EIO, msg) from error
        for name in names:
            objects_at(path).download(path / name, directory / name)
        yield directory


def _exists(path: Location, error: BaseException | None) -> bool:
    """Return whether the checkpoint exists of which a file could not be read."""
    if isinstance(path, Path):
        return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises what the disk raises
    if not isinstance(error, FileNotFoundError):
        return True
    from sweeper.checkpoint.remote_objects import objects_at

    try:
        return objects_at(path).size(path / MANIFEST_FILE) is not None
    except OSError:
        return True


def _is_passed_over(path: Location, error: CheckpointError) -> bool:
    """Return whether an error of reading concerns one checkpoint only, so that others may be used."""
    reason = error.__cause__
    if isinstance(path, RemotePath):
        return isinstance(reason, FileNotFoundError)
    return isinstance(reason, OSError) and reason.errno in _PASSED_OVER


def _newest_first(directories: Sequence[Location], announced: Iterable[Location]) -> list[Location]:
    """Return every listed or known checkpoint, the best one to resume from first."""
    attempts = {path: attempt_of(path) or 0 for path in announced}
    for order, directory in enumerate(directories, 1):
        attempts.update(dict.fromkeys(list_checkpoints(directory), order))

    def newness(path: Location) -> tuple[int, int, int]:
        name = checkpoint_name(path)
        return name.step, attempts[path], name.revision

    return sorted(attempts, key=newness, reverse=True)


def _is_of(path: Location, owner: Origin | None, expected: Origin) -> bool:
    """Return whether the checkpoint may be used; refuse one of another origin."""
    if owner is None:
        return False
    differences = expected.differences(owner)
    if differences:
        raise ForeignCheckpointError(
            f"no training can resume from the checkpoint {path}: {'; '.join(differences)}. "
            "Nothing was written there; move it away, or give another directory "
            f"({'--runs-dir' if expected.study else 'checkpoints=…'})"
        )
    return True


def _mark_corrupt(path: Location) -> str:
    """Rename the damaged checkpoint, and return a sentence with its new name."""
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_objects import mark_corrupt_remote

        return mark_corrupt_remote(path)
    try:
        for attempt in count(1):
            target = path.with_name(f"{path.name}.corrupt-{attempt}")
            if not target.exists():
                break
        path.rename(target)
    except OSError as error:
        return f"It could not be renamed ({error})"
    return f"It was renamed to {target.name}"
