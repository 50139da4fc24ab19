"""Operations on an object store, by fsspec, with retries after temporary faults, and on the checkpoints in it.

All access to remote checkpoints goes through these methods, so that tests can stop the process or fail
the network at each operation. An object appears completely or not at all, and a written object is found
by its name at once: S3, Google Cloud Storage and MinIO guarantee both. There is no rename and no lock.

Large uploads are sent from a file in parts and completed at the end, so memory contains only copies of one
part. If a process dies during an upload, its parts remain invisible and cost money: give the bucket a rule
that aborts unfinished uploads.

A file system of fsspec runs a thread, which a fork does not copy. So it is created only when it is
needed, and never used in another process than the one that created it. The server from which trials are
forked does not import fsspec.

A checkpoint exists if its manifest exists, so a deletion removes that first. A damaged checkpoint is set
aside by renaming its manifest: it is copied to another name and then removed.
"""

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sweeper.checkpoint.format import MANIFEST_FILE, checkpoint_name
from sweeper.checkpoint.identity import CheckpointName
from sweeper.errors import CheckpointError, SweeperError, UsageError
from sweeper.support.calling import retrying
from sweeper.support.installation import install_command
from sweeper.support.paths import Location, RemotePath

UPLOADING = {"s3": {"max_concurrency": 1}}
"""Options of uploads by protocol: s3fs then has one part in memory."""

_PATIENCE = 120.0
"""Seconds for which an operation is retried."""

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0

_PASSING_ERRNO = (
    errno.EAGAIN,
    errno.EBUSY,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EREMOTEIO,
)
"""Beside those of `ConnectionError` and `TimeoutError`."""

_PASSING_STATUS = ("408", "429", "500", "502", "503", "504")
_PASSING_CLASSES = frozenset(
    {
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ConnectionError",  # botocore's is not Python's
        "HTTPClientError",
        "IncompleteRead",  # http.client
        "IncompleteReadError",
        "ResponseParserError",
        "ResponseStreamingError",
    }
)
"""Names of classes, because the installed libraries depend on the protocol."""

T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Return whether the error is temporary: a broken connection, a timeout, or a fault of the server."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    if str(_status(error)) in _PASSING_STATUS:
        return True
    if any(kind.__name__ in _PASSING_CLASSES for kind in type(error).__mro__):
        return True
    return error.__cause__ is not None and is_transient(error.__cause__)


class ObjectStore:
    """Objects of one protocol.

    Methods raise `FileNotFoundError` for a missing object, and `OSError` for faults that are not
    temporary or last longer than ``patience`` seconds.
    """

    def __init__(self, protocol: str, *, patience: float = _PATIENCE) -> None:
        self._protocol = protocol
        self._patience = patience
        self._connected: tuple[int, Any] | None = None

    def upload(self, path: RemotePath, file: Path) -> None:
        """Write an object with the content of ``file``, in parts if it is large."""
        size = file.stat().st_size
        options = UPLOADING.get(self._protocol, {})

        def send() -> None:
            try:
                self._files.put_file(str(file), path.key, **options)
            except FileNotFoundError:
                # The answer to the completion of an upload was lost, and the upload does not exist any more.
                if self._files.info(path.key)["size"] != size:
                    raise

        self.retrying(send)

    def download(self, path: RemotePath, file: Path) -> None:
        try:
            self.retrying(lambda: self._files.get_file(path.key, str(file)))
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error

    def copy(self, path: RemotePath, target: RemotePath) -> None:
        self.retrying(lambda: self._files.cp_file(path.key, target.key))

    def size(self, path: RemotePath) -> int | None:
        """Return the object's size in bytes, queried by name; None if it does not exist."""
        try:
            info = self.retrying(lambda: self._files.info(path.key))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def list(self, prefix: RemotePath) -> dict[tuple[str, ...], int]:
        """Return the sizes of the objects below ``prefix``, by the parts of their names after it.

        A missing prefix or bucket has none.
        """
        try:
            infos = self.retrying(lambda: self._files.find(prefix.key, detail=True))
        except FileNotFoundError:
            return {}
        within = len(prefix.parts)
        return {
            tuple(key.strip("/").split("/")[within:]): int(info["size"] or 0)
            for key, info in infos.items()
        }

    def remove(self, path: RemotePath) -> None:
        # A retried request may have removed it at the first try, whose answer was lost.
        with suppress(FileNotFoundError):
            self.retrying(lambda: self._files.rm_file(path.key))

    def retrying(self, operation: Callable[[], T]) -> T:
        """Call ``operation``, and again after temporary faults; errors of the libraries become `OSError`s."""
        try:
            return retrying(
                operation,
                is_transient,
                patience=self._patience,
                first_pause=_FIRST_PAUSE,
                longest_pause=_LONGEST_PAUSE,
            )
        except (OSError, SweeperError):
            raise
        except Exception as error:
            msg = f"{type(error).__name__}: {error}"
            raise OSError(errno.EIO, msg) from error

    def connect(self) -> Any:
        """Return a new file system of fsspec without caches, because other processes change the store."""
        import fsspec

        options: dict[str, Any] = {}
        if self._protocol == "s3":
            # botocore's own retries draw their pauses from Python's global generator, which is the trial's.
            options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
        return fsspec.filesystem(
            self._protocol, use_listings_cache=False, skip_instance_cache=True, **options
        )

    @property
    def _files(self) -> Any:
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = (os.getpid(), self.connect())
        return self._connected[1]


@lru_cache(maxsize=8)
def objects_of(protocol: str) -> ObjectStore:
    return ObjectStore(protocol)


def objects_at(path: RemotePath) -> ObjectStore:
    return objects_of(path.protocol)


def advice_on_store(path: RemotePath) -> str:
    return (
        f"check that {path.protocol}://{path.parts[0]} exists, that this machine can reach it, "
        "and that its credentials allow reading, writing, listing and deleting there "
        "(--checkpoints names the place)"
    )


def check_checkpoints_location(location: Location | None, isolation: str) -> None:
    """Check, before a run, that trials can write checkpoints to ``location``."""
    if not isinstance(location, RemotePath):
        return
    if location.protocol == "memory" and isolation != "inline":
        raise UsageError(
            f"{location} is in the memory of one process, and each trial has its own process; "
            "name a bucket or a directory, because memory:// is only for isolation 'inline'"
        )
    try:
        import fsspec

        fsspec.get_filesystem_class(location.protocol)
    except ImportError as error:
        command = install_command("remote", *(["gcsfs"] if location.protocol == "gs" else []))
        raise UsageError(
            f"checkpoints on {location.protocol}:// need a package that is not installed "
            f"({error}): run {command}"
        ) from error


def _status(error: BaseException) -> object:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return getattr(error, "status", None) or getattr(error, "code", None)


_CORRUPT = f"{MANIFEST_FILE}.corrupt-"


def listed_objects(directory: RemotePath) -> dict[RemotePath, dict[str, int]]:
    """Return the sizes of the objects of each checkpoint below an attempt's prefix, oldest first.

    One without a manifest is no checkpoint, but what an interrupted commit or deletion left, or a
    damaged one (see `is_marked_corrupt_remote`).
    """
    try:
        listed = objects_at(directory).list(directory)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {directory} cannot be listed: {error}; {advice_on_store(directory)}"
        ) from error
    sizes: dict[CheckpointName, dict[str, int]] = {}
    for names, size in listed.items():
        name = CheckpointName.parse(names[0]) if len(names) == 2 else None
        if name is not None:
            sizes.setdefault(name, {})[names[1]] = size
    return {directory / str(name): sizes[name] for name in sorted(sizes)}


def list_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Return an attempt's checkpoints, oldest first; see `listed_objects`."""
    listed = listed_objects(directory)
    return tuple(path for path, sizes in listed.items() if MANIFEST_FILE in sizes)


def is_marked_corrupt_remote(sizes: dict[str, int]) -> bool:
    """Return whether these objects are a damaged checkpoint that a reader has renamed."""
    return any(name.startswith(_CORRUPT) for name in sizes)


def mark_corrupt_remote(path: RemotePath) -> str:
    """Rename the damaged checkpoint's manifest, and return a sentence with its new name."""
    objects = objects_at(path)
    aside = path / f"{_CORRUPT}1"
    try:
        objects.copy(path / MANIFEST_FILE, aside)
        objects.remove(path / MANIFEST_FILE)
    except OSError as error:
        return f"It could not be renamed ({error})"
    return f"Its manifest was renamed to {aside}"


def delete_remote(path: RemotePath) -> None:
    """Remove a checkpoint's manifest, with which it ceases to exist, and then its files."""
    checkpoint_name(path)
    objects = objects_at(path)
    try:
        objects.remove(path / MANIFEST_FILE)
        for names in objects.list(path):
            objects.remove(RemotePath(path.protocol, (*path.parts, *names)))
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} cannot be deleted: {error}; {advice_on_store(path)}"
        ) from error


def sweep_remote(directory: RemotePath) -> tuple[RemotePath, ...]:
    """Remove what an attempt that has ended left without a manifest; return the removed prefixes.

    Each manifest is queried by name before, in case a listing does not show it.
    """
    objects = objects_at(directory)
    removed = []
    for path, sizes in listed_objects(directory).items():
        if MANIFEST_FILE in sizes or is_marked_corrupt_remote(sizes):
            continue
        try:
            manifest_size = objects.size(path / MANIFEST_FILE)
        except OSError as error:
            raise CheckpointError(
                f"{path / MANIFEST_FILE} cannot be looked up: {error}; {advice_on_store(path)}"
            ) from error
        if manifest_size is None:
            delete_remote(path)
            removed.append(path)
    return tuple(removed)
