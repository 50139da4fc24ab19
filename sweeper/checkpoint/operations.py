"""File-system operations of commits and deletions.

All writes of checkpoints go through these methods, so that tests can stop the process, fill the disk or
simulate a power cut at each operation.
"""

import errno
import os
import shutil
from pathlib import Path


class FileOperations:
    """Operations of the system; each raises `OSError` as the system does."""

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def create(self, path: Path) -> int:
        """Create a file, which must not exist, and return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write a part of ``data`` and return the number of written bytes, as the system call does."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def fsync_directory(self, path: Path) -> None:
        fsync_path(path)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content, or a link. Links in it are removed and never followed."""
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)

    def free_bytes(self, path: Path) -> int:
        existing = next(p for p in (path, *path.parents) if p.exists())
        return shutil.disk_usage(existing).free


def fsync_path(path: Path) -> None:
    """Make a file, or the entries of a directory, durable.

    Some network file systems do not support fsync of directories, with EINVAL; their entries are
    durable when the server answers.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOSYS)
"""Errors of file systems that make no hard links."""
