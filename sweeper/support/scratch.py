"""A directory for a while, removed even if its process is killed: by the next one that makes one.

Nothing can run after SIGKILL, and what a rehearsal or a replay leaves behind is gigabytes of
checkpoints. So each directory holds a lock, which the system releases with the last process that
has it open, and whoever makes a directory removes those of this user whose lock nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "sweeper-scratch-"
_LOCK = ".in-use"
_SETTLING = 60.0
"""Seconds within which a directory may be made and its lock not yet be held."""


@contextmanager
def scratch_directory(what: str) -> Iterator[Path]:
    """Make a directory in the system's directory for temporary files, and remove it at the end.

    Args:
        what: Becomes part of its name.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{what}-") as name:
        held = os.open(Path(name, _LOCK), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            _try_lock(held)
            yield Path(name)
        finally:
            os.close(held)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # Somebody else may be removing it too, and what cannot be removed is only in the way.
        with contextlib.suppress(OSError):
            found = directory.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if ours and time.time() - found.st_mtime > _SETTLING and not _in_use(directory):
                shutil.rmtree(directory)


def _in_use(directory: Path) -> bool:
    try:
        held = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(held)
    finally:
        os.close(held)


def _try_lock(descriptor: int) -> bool:
    """Take the lock; False where another process holds it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
