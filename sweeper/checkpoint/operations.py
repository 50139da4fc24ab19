"""The file-system operations of a commit, each in one place.

Everything that writes a checkpoint goes through these methods and nothing else, so a test can
stop the process, fill the disk or cut the power at each of them in turn.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sweeper.errors import CorruptCheckpointError

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


class FileOperations:
    """The operations as the system offers them; each raises OSError as the system does."""

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> int:
        """Create the file, which must not exist yet, and return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of ``data`` and return how many bytes, as the system call does."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def fsync_directory(self, path: Path) -> None:
        """Make the directory's entries durable.

        Some network file systems know no fsync of directories and say so with EINVAL: theirs are
        durable when the server answers.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove(self, path: Path, parent: int | None = None) -> None:
        """Remove a file or a link; by its name in the directory ``parent``, if that is given."""
        os.unlink(path if parent is None else path.name, dir_fd=parent)

    def remove_directory(self, path: Path, parent: int | None = None) -> None:
        """Remove an empty directory; by its name in ``parent``, if that is given."""
        os.rmdir(path if parent is None else path.name, dir_fd=parent)

    def remove_tree(self, path: Path) -> None:
        """Remove the directory and everything in it, one operation at a time.

        Each is removed by its name in the directory that was opened, and no link is followed, not
        even one that was put there meanwhile: what lies outside stays. A link is removed itself.
        """
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._remove_entry(path, parent)
        finally:
            os.close(parent)

    def _remove_entry(self, path: Path, parent: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path.name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            self.remove(path, parent)
            return
        try:
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - of a descriptor
                self._remove_entry(path / name, descriptor)
        finally:
            os.close(descriptor)
        self.remove_directory(path, parent)

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that are free to this user where ``path`` lies, or will lie."""
        existing = next(p for p in (path, *path.parents) if p.exists())
        return shutil.disk_usage(existing).free


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to be read, unbuffered; never wait for a pipe, nor touch a device.

    Raises:
        CorruptCheckpointError: It is no regular file.
        OSError: It is missing, or cannot be opened.
    """
    seen = os.stat(path)  # noqa: PTH116 - beside fstat
    descriptor = -1
    if stat.S_ISREG(seen.st_mode):
        # Should it be exchanged for a pipe in this very moment, opening that waits for nobody.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode):
        if descriptor >= 0:
            os.close(descriptor)
        msg = f"{path} is not a regular file; every file of a checkpoint must be one"
        raise CorruptCheckpointError(msg)
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - of a descriptor
        yield file


@contextmanager
def reading_lock(path: Path, *, exclusive: bool = False) -> Iterator[bool]:
    """Hold the checkpoint at ``path`` while it is read, or ask whether nobody reads it.

    The lock is the kernel's: it goes with the process that held it, however that ended. Where the
    file system has no locks, everybody gets one.

    Args:
        path: The checkpoint's directory.
        exclusive: For one who deletes: gives False at once when somebody is reading.

    Raises:
        OSError: The directory cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    mode = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
    try:
        try:
            fcntl.flock(descriptor, mode)
            free = True
        except BlockingIOError:
            free = False
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            free = True
        yield free
    finally:
        os.close(descriptor)


def free_pins(directory: str | Path) -> None:
    """Remove the directory of what was pinned for an audit, and those around it if empty then.

    What cannot be removed costs disk, and `sweeper gc` finds it.
    """
    pinned = Path(directory)
    if pinned.is_symlink():
        with contextlib.suppress(OSError):
            pinned.unlink()
    shutil.rmtree(pinned, ignore_errors=True)
    with contextlib.suppress(OSError):
        pinned.parent.rmdir()
        pinned.parent.parent.rmdir()
