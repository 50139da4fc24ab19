"""The operations on an object store, each in one place, tried again while a fault may pass.

Everything that touches a remote checkpoint goes through these methods and nothing else, so a test
can stop the process or fail the network at each of them in turn. fsspec speaks the protocol.

What is assumed of a store, and what is not:

* An object appears whole or not at all, and one that was written is found under its name at once.
  S3, Google Cloud Storage and MinIO promise both.
* A *listing* may be out of date. What it shows is a supplement, and is looked at by name before
  anything depends on it. fsspec's own cache of listings is off.
* There is no rename, and no lock.

Uploads larger than a part are sent in parts, from a file, and committed at their end: in memory are
a part and its copies on the way, nothing else. A process that dies in between leaves
parts that no reader sees and that cost money: give the bucket a rule that aborts unfinished uploads.

A file system of fsspec runs a thread, which a fork does not copy. So none is made before it is
needed, and one that was made in another process is never used: trial processes are forked from a
server that has not so much as imported fsspec.
"""

from __future__ import annotations

import errno
import http
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, BinaryIO, TypeVar

from sweeper.errors import SweeperError, UsageError
from sweeper.support.calling import retrying
from sweeper.support.installation import install_command
from sweeper.support.paths import Location, RemotePath

PART_BYTES = 8 << 20
"""A store takes parts of 5 MiB and more; each is held a few times over while it is sent."""

_MOST_PARTS = 9_000
_PATIENCE = 120.0
"""Seconds for which an operation is tried again."""

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
"""By name: which of these libraries is there depends on the protocol."""

_INSTALL = {
    "s3": install_command("remote"),
    "gs": install_command("remote", "gcsfs"),
    "memory": install_command("remote"),
}

T = TypeVar("T")


def is_transient(error: BaseException) -> bool:
    """Return whether the same operation may succeed a little later.

    A connection that broke, a time that ran out, a server that is busy or had an error of its own:
    yes. What is missing, forbidden or misspelt: no.
    """
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
    """One protocol's objects, as this process sees them.

    Each method raises FileNotFoundError where there is no such object, and OSError for all else
    that fails for longer than ``patience``.

    Args:
        protocol: As `RemotePath.protocol`.
        patience: Seconds for which an operation is tried again after faults that may pass; 0 for
            not at all.
    """

    def __init__(self, protocol: str, *, patience: float = _PATIENCE) -> None:
        self._protocol = protocol
        self._patience = patience
        self._connected: tuple[int, Any] | None = None

    def put(self, path: RemotePath, content: bytes) -> None:
        """Write a small object, at once."""
        self.retrying(lambda: self._files.pipe_file(path.key, content))

    def upload(self, path: RemotePath, file: BinaryIO, size: int) -> None:
        """Write an object of ``size`` bytes from ``file``, from its beginning, part by part."""

        def send() -> None:
            file.seek(0)
            if size <= PART_BYTES:
                self._files.pipe_file(path.key, file.read(size))
            else:
                self._send_parts(path, file, size)

        self.retrying(send)

    def read(self, path: RemotePath) -> bytes:
        """Read the whole of a small object."""
        content: bytes = self.retrying(lambda: self._files.cat_file(path.key))
        return content

    @contextmanager
    def open(self, path: RemotePath) -> Iterator[BinaryIO]:
        """Give the object to be read from its beginning, in parts that are fetched as needed."""
        with (
            _as_os_errors((ValueError,)),
            self._files.open(path.key, "rb", block_size=PART_BYTES, cache_type="readahead") as file,
        ):
            yield file

    def size(self, path: RemotePath) -> int:
        """Return the object's size in bytes, asked for by its name."""
        info: Mapping[str, Any] = self.retrying(lambda: self._files.info(path.key))
        if info["type"] != "file":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return int(info["size"])

    def exists(self, path: RemotePath) -> bool:
        """Return whether the object exists, asked for by its name."""
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: RemotePath) -> dict[tuple[str, ...], int]:
        """Return the objects that a listing shows below ``prefix``: the names after it, and their sizes.

        A prefix below which there is nothing, as in a bucket that is not there, has none.
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
        """Remove an object; one that is not there is removed already."""
        with suppress(FileNotFoundError):
            self.retrying(lambda: self._files.rm_file(path.key))

    def retrying(self, operation: Callable[[], T]) -> T:
        """Do ``operation``, and again after a fault that may pass, at growing intervals."""
        with _as_os_errors():
            return retrying(
                operation,
                is_transient,
                patience=self._patience,
                first_pause=_FIRST_PAUSE,
                longest_pause=_LONGEST_PAUSE,
            )

    def connect(self) -> Any:
        """Make a file system of fsspec's, with no cache that another process could outdate."""
        import fsspec

        return fsspec.filesystem(self._protocol, use_listings_cache=False, skip_instance_cache=True)

    @property
    def _files(self) -> Any:
        if self._connected is None or self._connected[0] != os.getpid():
            self._connected = (os.getpid(), self.connect())
        return self._connected[1]

    def _send_parts(self, path: RemotePath, file: BinaryIO, size: int) -> None:
        part = max(PART_BYTES, -(-size // _MOST_PARTS))
        # Not in a `with`: leaving one after an error would complete the upload as it is.
        target = self._files.open(path.key, "wb", block_size=part, autocommit=False)
        try:
            while chunk := file.read(part):
                target.write(chunk)
            target.close()
            self._complete(path, target, size)
        except BaseException:
            with suppress(Exception):
                target.discard()
            with suppress(AttributeError):
                target.closed = True
            raise

    def _complete(self, path: RemotePath, target: Any, size: int) -> None:
        """Complete an upload. One that was, and whose answer was lost, is no longer there to be."""
        try:
            target.commit()
        except FileNotFoundError:
            if self._files.info(path.key)["size"] != size:
                raise


def objects_at(path: RemotePath) -> ObjectStore:
    """Return the object store of ``path``: one for each protocol in each process."""
    return _objects(path.protocol, os.getpid())


def check_checkpoints_location(location: Location | None, isolation: str) -> None:
    """Check, before anything runs, that trials here can keep checkpoints at ``location``.

    Raises:
        UsageError: A package is missing, or the URL is the memory of a process that ends.
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
def _as_os_errors(passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what the libraries raise into OSError; they have classes of their own for a few.

    What is ``passing`` goes through as it is: whoever tries again has to know it by its class.
    """
    try:
        yield
    except (OSError, SweeperError):
        raise
    except passing:
        raise
    except Exception as error:
        msg = f"{type(error).__name__}: {error}"
        raise OSError(errno.EIO, msg) from error
