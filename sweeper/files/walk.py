"""Bounded walk through the directories that a trial works in.

No audit event announces a file that C++ or another program writes. Afterwards it exists, or has another size,
time or inode. So the files that a trial leaves are the difference of two walks.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.support.paths import DATABASE_FILE, nobodys

MOST_ENTRIES = 20_000
"""Maximum number of entries of one walk."""

ASIDE = ".sweeper-aside"
"""Directory to which `sweeper check` moves files."""

CODE = (".py", ".pyc", ".pyi", ".so")
_SKIPPED = frozenset({ASIDE, "__pycache__", ".git", ".hg", ".svn", "node_modules"})
_MARKED = frozenset({"pyvenv.cfg", DATABASE_FILE})
"""Files of a directory that is an installation of Python, or one of sweeper's own."""

State = tuple[int, ...]
"""Size, time (ns) and inode of a file; empty for a directory."""


@dataclass
class Listing:
    """Entries of directories by path, parents first; only of those in ``listed`` all entries are known."""

    states: dict[str, State] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    complete: bool = True

    def add(
        self, directories: Iterable[str], *, own: tuple[str, ...] = (), deep: bool = True
    ) -> None:
        """Add the entries of directories, and of those below them if ``deep``, except of ``own`` prefixes."""
        here = Path.cwd()
        skipped = (*own, *nobodys(str(here)))
        waiting = deque(directories)
        roots = set(waiting)
        while waiting:
            directory = waiting.popleft()
            if directory in self.listed:
                continue
            try:
                with os.scandir(directory) as scan:
                    entries = list(scan)
            except OSError:
                continue  # it was removed meanwhile, or cannot be read
            if directory not in roots and not _MARKED.isdisjoint(e.name for e in entries):
                continue
            if len(self.states) + len(entries) > MOST_ENTRIES:
                self.complete = False
                continue
            self.listed.add(directory)
            for entry in entries:
                below = entry.is_dir(follow_symlinks=False)
                if entry.name in _SKIPPED or f"{entry.path}/".startswith(skipped):
                    continue
                self.states[entry.path] = () if below else _state_of(entry)
                if below and deep:
                    waiting.append(entry.path)

    def new_in(self, after: Listing) -> Iterator[str]:
        """Yield the paths that are new ``after``; none below a directory whose entries were not known."""
        new: set[str] = set()
        for path in after.states:
            parent = os.path.dirname(path)  # noqa: PTH120 - for each of many entries
            if path not in self.states and (parent in self.listed or parent in new):
                new.add(path)
                yield path

    def changed_in(self, after: Listing) -> Iterator[str]:
        """Yield the paths of files that have changed ``after``."""
        for path, state in after.states.items():
            if self.states.get(path, state) != state:
                yield path


def _state_of(entry: os.DirEntry[str]) -> State:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        # It was removed meanwhile.
        return (0,)
    regular = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return (status.st_size, status.st_mtime_ns, status.st_ino) if regular else (0,)
