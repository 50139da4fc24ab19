"""Undoing of the changes in the journal of a check, which ended or was killed."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.run.trial.keeping import COPY, read_journal

_SETTLING = 5.0
"""Seconds after the last sign of life of a check within which its processes may have written."""


@dataclass
class Undone:
    """What was undone: paths put back and removed, further directories, and what could not be undone, a sentence each."""

    put_back: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def undo(journal: Path, undone: Undone, *, until: float | None = None) -> None:
    """Undo the changes in a journal, the latest first, and remove it.

    ``until`` is the last sign of life of a check that was killed; what was written later is the user's.

    Raises:
        OSError: A file could not be put back; the journal stays.
    """
    limit = None if until is None else (until + _SETTLING) * 1e9
    for entry in reversed(read_journal(journal)):
        _undo(entry, undone, limit)
    journal.unlink(missing_ok=True)


def _undo(entry: dict[str, Any], undone: Undone, limit: float | None) -> None:
    match entry:
        case {"made": path} | {"linked": path}:
            if _is_later(path, limit):
                undone.doubts.append(f"{path}, which the check made, was written to since")
            elif _remove(path):
                undone.removed.append(path)
        case {"kept": path, "under": copy}:
            _put_back(Path(path), Path(copy), limit, undone)
        case {"moved": source, "to": target}:
            _move_back(Path(source), Path(target), undone)
        case {"emptied": path}:
            Path(path).mkdir(parents=True, exist_ok=True)
        case {"large": path, "state": state} if _size_and_time(path) != state:
            undone.doubts.append(
                f"{path} was changed, and could not be kept: it is too large, or its directory is read-only"
            )
        case {"also": place}:
            undone.places.append(place)


def _size_and_time(path: str) -> list[int]:
    status = os.lstat(path) if os.path.lexists(path) else None
    return [] if status is None else [status.st_size, status.st_mtime_ns]


def _move_back(source: Path, target: Path, undone: Undone) -> None:
    if not os.path.lexists(source) and os.path.lexists(target):
        source.parent.mkdir(parents=True, exist_ok=True)
        target.rename(source)
        undone.put_back.append(str(source))


def _put_back(path: Path, copy: Path, limit: float | None, undone: Undone) -> None:
    copy.with_name(f"{COPY}{copy.name}").unlink(missing_ok=True)
    if not os.path.lexists(copy):
        return  # the process died between its line and the change, or it is back
    beside = path.with_name(f"{path.name}.before-check-{copy.name.partition('-')[0]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_later(str(path), limit):
        undone.doubts.append(f"{path} was written to since; what it was is now in {beside}")
        path = beside
    elif path.is_dir() and not path.is_symlink():
        # Only an empty directory makes room for the file that was there.
        with contextlib.suppress(OSError):
            path.rmdir()
        if path.is_dir():
            undone.doubts.append(f"{path} is not empty; what it was is now in {beside}")
            path = beside
    if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(copy)):
        copy.unlink()  # the change did not follow; of two names of one file, neither replaces the other
        return
    copy.replace(path)
    undone.put_back.append(str(path))


def _is_later(path: str, limit: float | None) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return limit is not None and status.st_mtime_ns > limit and not stat.S_ISDIR(status.st_mode)


def _remove(path: str) -> bool:
    """Remove a file, or a directory that is empty; return whether it was removed."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            Path(path).rmdir()
        else:
            Path(path).unlink()
    except OSError:
        return False
    return True
