"""Operations on an object store, by fsspec, with retries after temporary faults.

All access to remote checkpoints goes through these methods, so that tests can stop the process or fail
the network at each operation.

Assumptions about a store:

* An object appears completely or not at all, and a written object is found by its name at once. S3,
  Google Cloud Storage and MinIO guarantee both.
* A *listing* may be out of date. Objects in it are queried by name before anything depends on them.
  fsspec's cache of listings is disabled.
* There is no rename and no lock.

Uploads larger than a part are sent from a file in parts and completed at the end, so memory contains
only copies of one part (by s3fs; gcsfs has its own). If a process dies during an upload, its parts remain invisible and cost money:
give the bucket a rule that aborts unfinished uploads.

A file system of fsspec runs a thread, which a fork does not copy. So it is created only when it is
needed, and never used in another process than the one that created it. The server from which trials are
forked does not import fsspec.
"""

from __future__ import annotations

import errno
import http
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sweeper.errors import SweeperError, UsageError
from sweeper.support.calling import retrying
from sweeper.support.installation import install_command
from sweeper.support.paths import Location, RemotePath

PART_BYTES = 8 << 20
"""Size of an uploaded part; stores require 5 MiB or more."""

_MOST_PARTS = 9_000
_PATIENCE = 120.0
"""Seconds for which an operation is retried."""

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0

_PASSING_ERRNO = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.EREMOTEIO,
        errno.ETIMEDOUT,
    }
)
_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504})
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

_INSTALL = {
    "s3": install_command("remote"),
    "gs": install_command("remote", "gcsfs"),
    "memory": install_command("remote"),
}

T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Return whether the error is temporary: a broken connection, a timeout, or a fault of the server."""
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _PASSING_ERRNO:
        return True
    if _status(error) in _PASSING_STATUS:
        return True
    if any(kind.__name__ in _PASSING_CLASSES for kind in type(error).__mro__):
        return True
    return error.__cause__ is not None and is_transient(error.__cause__)


class ObjectStore:
    """Objects of one protocol.

    Methods raise `FileNotFoundError` for a missing object, and `OSError` for faults that are not
    temporary or last longer than ``patience``.

    Args:
        protocol: See `RemotePath.protocol`.
        patience: Seconds for which an operation is retried after temporary faults; 0 for no retry.
    """

    def __init__(self, protocol: str, *, patience: float = _PATIENCE) -> None:
        self._protocol = protocol
        self._patience = patience
        self._connected: tuple[int, Any] | None = None

    def put(self, path: RemotePath, content: bytes) -> None:
        """Write a small object in one request."""
        self.retrying(lambda: self._files.pipe_file(path.key, content))

    def upload(self, path: RemotePath, file: Path) -> None:
        """Write an object with the content of ``file``, in parts if it is large."""
        size = file.stat().st_size

        def send() -> None:
            try:
                self._files.put_file(str(file), path.key, **self._in_parts(size))
            except FileNotFoundError:
                # The answer to the completion of an upload was lost, and the upload does not exist any more.
                if self._files.info(path.key)["size"] != size:
                    raise

        self.retrying(send)

    def _in_parts(self, size: int) -> Mapping[str, int]:
        """Return the options of a large upload, of which one part at a time is in memory."""
        if self._protocol != "s3" or size <= PART_BYTES:
            return {}
        return {"chunksize": max(PART_BYTES, -(-size // _MOST_PARTS)), "max_concurrency": 1}

    def download(self, path: RemotePath, file: Path) -> None:
        """Write the content of an object to ``file``."""
        self.retrying(lambda: self._files.get_file(path.key, str(file)))

    def read(self, path: RemotePath) -> bytes:
        """Return the content of a small object."""
        content: bytes = self.retrying(lambda: self._files.cat_file(path.key))
        return content

    def size(self, path: RemotePath) -> int:
        """Return the object's size in bytes, queried by name."""
        info: Mapping[str, Any] = self.retrying(lambda: self._files.info(path.key))
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return int(info["size"])

    def exists(self, path: RemotePath) -> bool:
        """Return whether the object exists, queried by name."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: RemotePath) -> dict[tuple[str, ...], int]:
        """Return the sizes of the objects in a listing below ``prefix``, by the parts of their names after it.

        A missing prefix or bucket has none.
        """

        def find() -> Mapping[str, Any]:
            try:
                found: Mapping[str, Any] = self._files.find(prefix.key, detail=True)
            except FileNotFoundError:
                return {}
            return found

        within = len(prefix.parts)
        listed = self.retrying(find)
        return {
            tuple(key.strip("/").split("/")[within:]): int(info["size"] or 0)
            for key, info in listed.items()
        }

    def remove(self, path: RemotePath) -> None:
        """Remove an object, if it exists."""
        with suppress(FileNotFoundError):
            self.retrying(lambda: self._files.rm_file(path.key))

    def retrying(self, operation: Callable[[], T]) -> T:
        """Call ``operation``, and again after temporary faults, with growing pauses."""
        with _as_os_errors():
            return retrying(
                operation,
                is_transient,
                patience=self._patience,
                first_pause=_FIRST_PAUSE,
                longest_pause=_LONGEST_PAUSE,
            )

    def connect(self) -> Any:
        """Return a new file system of fsspec without caches, because other processes change the store."""
        import fsspec

        return fsspec.filesystem(self._protocol, use_listings_cache=False, skip_instance_cache=True)

    @property
    def _files(self) -> Any:
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = (os.getpid(), self.connect())
        return self._connected[1]


def objects_at(path: RemotePath) -> ObjectStore:
    """Return the object store of ``path``, one for each protocol and process."""
    return _objects(path.protocol, os.getpid())


def check_checkpoints_location(location: Location | None, isolation: str) -> None:
    """Check, before a run, that trials can write checkpoints to ``location``.

    Raises:
        UsageError: A package is missing, or the URL refers to the memory of a process that ends.
    """
    if not isinstance(location, RemotePath):
        return
    if location.protocol == "memory" and isolation != "inline":
        msg = (
            f"{location} is in the memory of one process, and each trial has its own process; "
            "name a bucket or a directory, because memory:// is only for isolation 'inline'"
        )
        raise UsageError(msg)
    try:
        import fsspec

        fsspec.get_filesystem_class(location.protocol)
    except ImportError as error:
        msg = (
            f"checkpoints on {location.protocol}:// need a package that is not installed "
            f"({error}): run "
        )
        raise UsageError(msg + _INSTALL[location.protocol]) from error


@lru_cache(maxsize=8)
def _objects(protocol: str, _process: int) -> ObjectStore:
    return ObjectStore(protocol)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status in a library's error, or None."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status", None) or getattr(error, "code", None)
    with suppress(TypeError, ValueError):
        return http.HTTPStatus(int(status)).value
    return None


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Context manager that converts errors of the libraries to `OSError`."""
    try:
        yield
    except (OSError, SweeperError):
        raise
    except Exception as error:
        msg = f"{type(error).__name__}: {error}"
        raise OSError(errno.EIO, msg) from error
