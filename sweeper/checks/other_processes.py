"""Other processes that write to the disk in the directories of a check.

What such a process writes cannot be told from what C++ code of a trial writes: both are found by walks alone.
A process counts if it works below one of the directories, or has a file open there, and has written to a disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def written_bytes(roots: Sequence[str], workers: Iterable[int]) -> dict[str, int]:
    """Return the bytes that each other process at work below ``roots`` has written to disks, by its name and id.

    ``workers`` are the processes that work for the check; those that they started do, too.
    """
    import psutil

    this = psutil.Process()
    above = {process.pid for process in this.parents()}
    ours = {this.pid, *workers}
    written = {}
    for process in psutil.process_iter():
        # A process may end meanwhile, and those of other users tell nothing.
        with contextlib.suppress(psutil.Error):
            if process.pid in above or not any(_is_below(p, roots) for p in _paths_in_use(process)):
                continue
            # Its parents are asked now, because a trial may have started after this loop began.
            if ours.isdisjoint({process.pid, *(parent.pid for parent in process.parents())}):
                name = f"{process.name()}, process {process.pid}"
                written[name] = process.io_counters().write_bytes
    return written


def at_work(before: dict[str, int], after: dict[str, int]) -> str | None:
    """Return a process that has written between two calls of `written_bytes`; None if none has."""
    return next((name for name, count in after.items() if count > before.get(name, 0)), None)


def _paths_in_use(process: psutil.Process) -> Iterator[str]:
    yield process.cwd()
    yield from (file.path for file in process.open_files())


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)
