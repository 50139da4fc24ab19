"""Reading checkpoints: verified while they are read, falling back to the one before.

A reader trusts nothing that it has not hashed. What does not verify is renamed aside, so that it
is neither tried again nor counted, and stays for a person to look at. When it cannot be renamed
(a read-only disk), the fallback works all the same.

A checkpoint lies in a directory, or below a prefix in an object store (see `remote_reading`, which
is imported only for one of those).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
)
from sweeper.checkpoint.identity import CheckpointName, Origin, aside_name
from sweeper.checkpoint.operations import FileOperations, open_regular, reading_lock
from sweeper.checkpoint.verifying import checkpoint_name, manifest_of, read_verified
from sweeper.errors import CheckpointError, CorruptCheckpointError, ForeignCheckpointError
from sweeper.spec.checkpointing import KeptCheckpoint
from sweeper.support.paths import Location, RemotePath

Notice = Callable[[str], None]

_PASSED_OVER = (errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of one checkpoint alone: it is gone, or a sector of the disk is bad and stays so."""

_ATTEMPT = re.compile(r"attempt-(\d+)")


def list_checkpoints(directory: Location) -> tuple[Location, ...]:
    """Return what is called a checkpoint in ``directory``, oldest first; nothing is opened.

    A directory that is not there has none.

    Raises:
        OSError: The directory cannot be read.
        CheckpointError: The object store cannot be listed.
    """
    if isinstance(directory, RemotePath):
        from sweeper.checkpoint.remote_reading import list_remote

        return list_remote(directory)
    return list_local(directory)


def list_local(directory: Path) -> tuple[Path, ...]:
    """As `list_checkpoints`, of a directory of this machine.

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
    """Read one checkpoint, each of its bytes once, and verify all of it.

    A file that the manifest does not name is not opened and does no harm.

    Raises:
        CorruptCheckpointError: A file is missing, or is not what the manifest says; which one,
            what was seen and what was expected.
        CheckpointError: It is no checkpoint, cannot be read, or is of a later format.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_reading import load_remote

        return load_remote(path)
    checkpoint_name(path)
    try:
        with reading_lock(path):
            return read_verified(_LocalFiles(path))
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
    """Load the newest checkpoint that verifies, of all attempts of a trial.

    Args:
        directories: Where each attempt keeps its checkpoints, in the attempts' order; those that
            are not there are passed over. Of two at one step the later attempt's is the newer.
        notice: Called with every one that was set aside or could not be used.
        known: Checkpoints that were announced: looked for by name, listed or not.
        origin: Whose they must be; None where that does not matter. One that does not say whose it
            is, as an older version wrote it, is used if it was announced.
        operations: The file system, when it is not the system's own.

    Returns:
        The checkpoint, or None when there is none that verifies.

    Raises:
        ForeignCheckpointError: The newest is whole, and another study's or trial's.
        CheckpointError: The newest is whole, and of a format that only a later version reads; or
            a disk or an object store that may hold a newer one cannot be read.
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
        # An attempt that does not know that it is over may have deleted these for newer ones.


@dataclass
class _Search:
    """One search of `load_newest`: its conditions, and the checkpoints it has seen.

    Attributes:
        vanished: Whether a checkpoint that was listed a moment ago is gone.
    """

    notice: Notice
    known: set[Location]
    origin: Origin | None
    operations: FileOperations
    vanished: bool = False
    tried: set[Location] = field(default_factory=set)

    def load(self, path: Location) -> LoadedCheckpoint | None:
        """Load the checkpoint; if it cannot be used, give a notice and return None."""
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
        if self.origin is None or _is_of(
            path, loaded.origin, self.origin, announced=path in self.known
        ):
            return loaded
        self.notice(
            f"the checkpoint {path} does not name its owner, and the database does not list it; "
            "using the checkpoint before it"
        )
        return None

    def _pass_over(self, path: Location, error: CheckpointError) -> None:
        """Say that a checkpoint cannot be read; or raise, where that says nothing of it."""
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
        self.notice(f"{error}; using the checkpoint before it")


def read_kept(
    directories: Iterable[Location],
    known: Iterable[Location] = (),
    *,
    origin: Origin | None = None,
    unmarked: bool = False,
) -> tuple[KeptCheckpoint, ...]:
    """Return what retention needs to know of every checkpoint, from the manifests alone.

    One whose manifest does not verify is among them with ``good=False``.

    Args:
        directories: Where each attempt keeps its checkpoints.
        known: Checkpoints that were announced: looked for by name, listed or not.
        origin: Whose they must be; None where that does not matter.
        unmarked: Whether those count too that say not whose they are and were not announced.

    Raises:
        ForeignCheckpointError: One is another's, which no rule of this study's applies to.
        CheckpointError: A disk or an object store cannot be read.
    """
    kept: list[KeptCheckpoint] = []
    known = list(known)
    listed = [path for directory in directories for path in _listed(directory)]
    for path in dict.fromkeys([*listed, *known]):
        try:
            manifest = read_manifest(path)
            if origin is not None and not _is_of(
                path, manifest.origin, origin, announced=unmarked or path in known
            ):
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
    """Read the manifest of the checkpoint at ``path``.

    Raises:
        OSError: It cannot be read.
        CheckpointError: It does not verify, or is of a later format.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_reading import read_remote_manifest

        return read_remote_manifest(path)
    return manifest_of(_LocalFiles(path))[0]


def read_state(path: Location) -> bytes:
    """Read the encoded state of the checkpoint at ``path``, without decoding it.

    Raises:
        OSError: It cannot be read.
    """
    if isinstance(path, RemotePath):
        from sweeper.checkpoint.remote_objects import objects_at

        return objects_at(path).read(path / STATE_FILE)
    return _LocalFiles(path).read(STATE_FILE)


@dataclass(frozen=True)
class _LocalFiles:
    path: Path

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def size(self, name: str) -> int:
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with open_regular(self.path / name) as file:
            yield file


def _newest_first(
    directories: Sequence[Location], known: Iterable[Location], notice: Notice
) -> list[Location]:
    """Return every listed or known checkpoint, the best one to resume from first."""
    candidates: dict[Location, tuple[int, int, int]] = {}
    for order, directory in enumerate(directories, 1):
        try:
            paths = list_checkpoints(directory)
        except NotADirectoryError as error:
            notice(f"the checkpoints in {directory} cannot be listed ({error}); they are left out")
            continue
        except OSError as error:
            raise _unlisted(directory, error) from error
        for path in paths:
            named = checkpoint_name(path)
            candidates[path] = (named.step, order, named.revision)
    for path in known:
        attempt = _ATTEMPT.fullmatch(path.parent.parent.name)
        name = CheckpointName.parse(path.name)
        if name is not None and path not in candidates:
            order = 0 if attempt is None else int(attempt[1])
            candidates[path] = (name.step, order, name.revision)
    return sorted(candidates, key=lambda path: candidates[path], reverse=True)


def _listed(directory: Location) -> tuple[Location, ...]:
    try:
        return list_checkpoints(directory)
    except NotADirectoryError:
        return ()
    except OSError as error:
        raise _unlisted(directory, error) from error


def _unlisted(directory: Location, error: OSError) -> CheckpointError:
    """Return the error for a directory that cannot be listed. It may hold hours of training, so no trial starts over because of it."""
    msg = (
        f"the checkpoints in {directory} cannot be read: {error}; check the disk and its "
        "permissions, then resume"
    )
    return CheckpointError(msg)


def _is_of(path: Location, found: Origin | None, expected: Origin, *, announced: bool) -> bool:
    """Return whether the checkpoint may be used. One without an origin may be used only if it was announced.

    Raises:
        ForeignCheckpointError: It is another's.
    """
    if found is None:
        return announced
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
    """Rename the damaged checkpoint, and say where it is now."""
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
