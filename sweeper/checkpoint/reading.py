"""Reading of checkpoints, which are verified while they are read, with a fallback to the previous one.

A checkpoint that does not verify is renamed, so that it is neither tried again nor counted by
retention, and the user can inspect it. If it cannot be renamed (a read-only disk), the fallback works
nevertheless.

A checkpoint is in a directory, or below a prefix in an object store; `remote_reading` is imported only
for the latter.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
    manifest_of,
    read_verified,
)
from sweeper.checkpoint.identity import CheckpointName, Origin, aside_name
from sweeper.checkpoint.operations import FileOperations, open_regular
from sweeper.errors import CheckpointError, CorruptCheckpointError, ForeignCheckpointError
from sweeper.spec.checkpointing import KeptCheckpoint
from sweeper.support.paths import Location, RemotePath

Notice = Callable[[str], None]

_PASSED_OVER = (errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors that concern one checkpoint only: it is missing, or the disk has a bad sector there."""

_ATTEMPT = re.compile(r"attempt-(\d+)")


def list_checkpoints(directory: Location) -> tuple[Location, ...]:
    """Return the paths in ``directory`` with names of checkpoints, oldest first, without opening any.

    A missing directory has none.

    Raises:
        OSError: The directory cannot be read.
        CheckpointError: The object store cannot be listed.
    """
    if isinstance(directory, RemotePath):
        from sweeper.checkpoint.remote_reading import list_remote

        return list_remote(directory)
    return list_local(directory)


def list_local(directory: Path) -> tuple[Path, ...]:
    """Return the same as `list_checkpoints`, for a directory of this machine.

    Raises:
        OSError: It cannot be read.
    """
    try:
        entries = list(directory.iterdir())
    except FileNotFoundError:
        return ()
    named = ((CheckpointName.parse(entry.name), entry) for entry in entries)
    return tuple(path for _, path in sorted((name, path) for name, path in named if name))


def load_checkpoint(path: Location) -> LoadedCheckpoint:
    """Read and verify one checkpoint; each byte is read once.

    Raises:
        CorruptCheckpointError: A file is missing or differs from the manifest; the message names it
            with the seen and the expected value.
        CheckpointError: It is no checkpoint, cannot be read, or has a later format.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_reading import load_remote

        return load_remote(path)
    checkpoint_name(path)
    try:
        # All files are opened before any is read: a deletion meanwhile removes only their names.
        with _opened(path, MANIFEST_FILE, STATE_FILE, TENSORS_FILE) as files:
            return read_verified(path, files)
    except OSError as error:
        if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises what the disk raises
            msg = f"the checkpoint {path} is missing, or is not a directory"
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
    directories: Iterable[Location],
    notice: Notice,
    *,
    known: Iterable[Location] = (),
    origin: Origin | None = None,
    operations: FileOperations | None = None,
) -> LoadedCheckpoint | None:
    """Return the newest checkpoint that verifies, of all attempts of a trial.

    Args:
        directories: Checkpoint directories of the attempts, in order; missing ones are ignored. Of
            two checkpoints at one step, that of the later attempt is newer.
        notice: Receives a message for each checkpoint that was renamed or could not be used.
        known: Announced checkpoints, which are read by name even if a listing does not show them.
        origin: Required origin; None to accept any, and checkpoints without one.
        operations: File-system operations; None for the system's.

    Returns:
        The checkpoint, or None if none verifies.

    Raises:
        ForeignCheckpointError: The newest belongs to another study or trial.
        CheckpointError: The newest has a later format; or a disk or an object store that may contain
            a newer one cannot be read.
    """
    search = _Search(notice, set(known), origin, operations or FileOperations())
    directories = list(directories)
    while True:
        fresh = _newest_first(directories, search.known, notice)
        search.vanished = False
        for path in (p for p in fresh if p not in search.tried):
            loaded = search.load(path)
            if loaded is not None:
                return loaded
        if not search.vanished:
            return None
        # An attempt that has lost its lease may have deleted these and written newer ones.


@dataclass
class _Search:
    """State of one call of `load_newest`.

    Attributes:
        vanished: Whether a checkpoint was deleted after it was listed.
    """

    notice: Notice
    known: set[Location]
    origin: Origin | None
    operations: FileOperations
    vanished: bool = False
    tried: set[Location] = field(default_factory=set)

    def load(self, path: Location) -> LoadedCheckpoint | None:
        """Return the checkpoint; if it cannot be used, send a notice and return None."""
        self.tried.add(path)
        try:
            loaded = load_checkpoint(path)
        except CorruptCheckpointError as error:
            aside = _set_aside(path, self.operations)
            self.notice(f"{error}. {aside}; using the checkpoint before it")
            return None
        except CheckpointError as error:
            self._pass_over(path, error)
            return None
        if self.origin is None or _is_of(path, loaded.origin, self.origin):
            return loaded
        self.notice(
            f"the checkpoint {path} does not name its owner; using the checkpoint before it"
        )
        return None

    def _pass_over(self, path: Location, error: CheckpointError) -> None:
        """Send a notice that a checkpoint cannot be read; raise the error if others may be affected, too."""
        reason = error.__cause__
        if not isinstance(reason, OSError):
            raise error
        if isinstance(path, RemotePath):
            if not isinstance(reason, FileNotFoundError):
                raise error
            self.vanished = True
            return
        if reason.errno not in _PASSED_OVER:
            raise error
        self.vanished = self.vanished or reason.errno == errno.ENOENT
        self.notice(f"{error}; using the checkpoint before it")


def read_kept(
    directories: Iterable[Location],
    known: Iterable[Location] = (),
    *,
    origin: Origin | None = None,
) -> tuple[KeptCheckpoint, ...]:
    """Return the data that retention needs of every checkpoint, from the manifests alone.

    A checkpoint whose manifest does not verify has ``good=False``.

    Args:
        directories: Checkpoint directories of the attempts.
        known: Announced checkpoints, which are read by name even if a listing does not show them.
        origin: Required origin; None to accept any.

    Raises:
        ForeignCheckpointError: A checkpoint belongs to another study.
        CheckpointError: A disk or an object store cannot be read.
    """
    kept: list[KeptCheckpoint] = []
    listed = [path for directory in directories for path in _listed(directory, lambda _: None)]
    for path in dict.fromkeys([*listed, *known]):
        try:
            manifest = read_manifest(path)
            if origin is not None and not _is_of(path, manifest.origin, origin):
                continue
        except ForeignCheckpointError:
            raise
        except (OSError, CheckpointError) as error:
            name = CheckpointName.parse(path.name)
            if isinstance(path, RemotePath) and isinstance(error, FileNotFoundError):
                continue
            if isinstance(path, RemotePath) and isinstance(error, OSError):
                msg = f"the manifest of {path} cannot be read: {error}"
                raise CheckpointError(msg) from error
            if isinstance(error, OSError) and error.errno not in _PASSED_OVER:
                raise _unlisted(path, error) from error
            if name is not None and (isinstance(path, RemotePath) or os.path.isdir(path)):  # noqa: PTH112
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


def read_manifest(path: Location) -> Manifest:
    """Return the manifest of the checkpoint at ``path``.

    Raises:
        OSError: It cannot be read.
        CheckpointError: It does not verify, or has a later format.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_reading import read_remote_manifest

        return read_remote_manifest(path)
    with _opened(path, MANIFEST_FILE) as files:
        return manifest_of(path, files[MANIFEST_FILE])[0]


def read_state(path: Location) -> bytes:
    """Return the encoded state of the checkpoint at ``path``.

    Raises:
        OSError: It cannot be read.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_objects import objects_at

        return objects_at(path).read(path / STATE_FILE)
    with _opened(path, STATE_FILE) as files:
        return files[STATE_FILE].read()


@contextmanager
def _opened(path: Path, *names: str) -> Iterator[Mapping[str, BinaryIO]]:
    """Context manager that opens these files of the checkpoint at ``path``."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(open_regular(path / name)) for name in names}


def _newest_first(
    directories: Sequence[Location], known: Iterable[Location], notice: Notice
) -> list[Location]:
    """Return every listed or known checkpoint, the best one to resume from first."""
    candidates: dict[Location, tuple[int, int, int]] = {}
    for order, directory in enumerate(directories, 1):
        for path in _listed(directory, notice):
            named = checkpoint_name(path)
            candidates[path] = (named.step, order, named.revision)
    for path in known:
        attempt = _ATTEMPT.fullmatch(path.parent.parent.name)
        name = CheckpointName.parse(path.name)
        if name is not None and path not in candidates:
            order = 0 if attempt is None else int(attempt[1])
            candidates[path] = (name.step, order, name.revision)
    return sorted(candidates, key=lambda path: candidates[path], reverse=True)


def _listed(directory: Location, notice: Notice) -> tuple[Location, ...]:
    try:
        return list_checkpoints(directory)
    except NotADirectoryError as error:
        notice(f"the checkpoints in {directory} cannot be listed ({error}); they are left out")
        return ()
    except OSError as error:
        raise _unlisted(directory, error) from error


def _unlisted(directory: Location, error: OSError) -> CheckpointError:
    """Return the error for a directory that cannot be listed; it must not be treated as an empty one."""
    msg = (
        f"the checkpoints in {directory} cannot be read: {error}; check the disk and its "
        "permissions, then resume"
    )
    return CheckpointError(msg)


def _is_of(path: Location, found: Origin | None, expected: Origin) -> bool:
    """Return whether the checkpoint may be used; False for one without an origin.

    Raises:
        ForeignCheckpointError: It has another origin.
    """
    if found is None:
        return False
    differences = expected.differences(found)
    if differences:
        msg = (
            f"no training can resume from the checkpoint {path}: {'; '.join(differences)}. "
            "Nothing was written there; move it away, or give another directory "
            f"({'--runs-dir' if expected.study else 'checkpoints=…'})"
        )
        raise ForeignCheckpointError(msg)
    return True


def _set_aside(path: Location, operations: FileOperations) -> str:
    """Rename the damaged checkpoint, and return a sentence with its new name."""
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_reading import set_aside_remote

        return set_aside_remote(path)
    try:
        for attempt in count(1):
            target = path.with_name(aside_name(path.name, attempt))
            if not target.exists():
                break
        operations.rename(path, target)
    except OSError as error:
        return f"It could not be renamed ({error})"
    return f"It was renamed to {target.name}"
