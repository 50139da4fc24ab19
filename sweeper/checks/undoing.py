"""Undoing of the changes in the journal of a check, which ended or was killed."""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.run.trial.keeping import COPY, read_changes

_SETTLING = 5.0
"""Seconds after the last sign of life of a check within which its processes may have written."""


@dataclass
class Undone:
    """Record of what was undone: paths put back and removed, further directories, and doubts, a sentence each.

    ``shared``: another process works in the directories, and may have written to a file that is put back.
    """

    put_back: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    shared: bool = False


def undo(changes: Path, undone: Undone, *, until: float | None = None) -> None:
    """Undo the changes in a journal, the latest first, and remove it.

    ``until`` is the last sign of life of a check that was killed; what was written later is the user's.

    Raises:
        OSError: A file could not be put back; the journal stays.
    """
    limit = None if until is None else (until + _SETTLING) * 1e9
    for entry in reversed(read_changes(changes)):
        _undo(entry, undone, limit)
    changes.unlink(missing_ok=True)


def _undo(entry: dict[str, Any], undone: Undone, limit: float | None) -> None:
    match entry:
        case {"made": path} | {"linked": path}:
            if _is_later(path, limit):
                undone.doubts.append(f"{path}, which the check made, was written to since")
            elif _remove(path):
                undone.removed.append(path)
        case {"kept": path, "under": kept}:
            _put_back(Path(path), Path(kept), limit, undone)
        case {"moved": source, "to": target}:
            _move_back(Path(source), Path(target), undone)
        case {"emptied": path}:
            Path(path).mkdir(parents=True, exist_ok=True)
        case {"large": path, "state": state} if _size_and_time(path) != state:
            undone.doubts.append(
                f"{path} was changed, and could not be kept: it is too large, or its directory is read-only"
            )
        case {"also": aside}:
            undone.directories.append(aside)


def _size_and_time(path: str) -> list[int]:
    found = os.lstat(path) if os.path.lexists(path) else None
    return [] if found is None else [found.st_size, found.st_mtime_ns]


def _move_back(source: Path, target: Path, undone: Undone) -> None:
    if not os.path.lexists(source) and os.path.lexists(target):
        source.parent.mkdir(parents=True, exist_ok=True)
        target.rename(source)
        undone.put_back.append(str(source))


def _put_back(path: Path, kept: Path, limit: float | None, undone: Undone) -> None:
    kept.with_name(f"{COPY}{kept.name}").unlink(missing_ok=True)
    if not os.path.lexists(kept):
        return  # the process died between its line and the change, or it is back
    beside = path.with_name(f"{path.name}.before-check-{kept.name.partition('-')[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_later(str(path), limit):
        undone.doubts.append(f"{path} was written to since; what it was is now in {beside}")
        path = beside
    elif path.is_dir() and not path.is_symlink():
        with contextlib.suppress(OSError):
            path.rmdir()
        if path.is_dir():
            undone.doubts.append(f"{path} is not empty; what it was is now in {beside}")
            path = beside
    if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(kept)):
        kept.unlink()  # the change did not follow; of two names of one file, neither replaces the other
        return
    if undone.shared and path.is_file() and not filecmp.cmp(path, kept, shallow=False):
        other = free_name(path)
        path.rename(other)
        undone.doubts.append(
            f"{path} is what it was; what trials, or another process, wrote to it is in {other}"
        )
    kept.replace(path)
    undone.put_back.append(str(path))


def free_name(path: Path, why: str = "by-check") -> Path:
    """Return the first free name for another content of a file."""
    names = (path.with_name(f"{path.name}.{why}-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _is_later(path: str, limit: float | None) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return limit is not None and found.st_mtime_ns > limit and not stat.S_ISDIR(found.st_mode)


def _remove(path: str) -> bool:
    """Remove a file, or a directory that is empty; return whether it was there and is gone."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            Path(path).rmdir()
        else:
            Path(path).unlink()
    except OSError:
        return False
    return True
