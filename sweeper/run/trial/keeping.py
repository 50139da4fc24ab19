"""Journal of what the processes of `sweeper check` are about to change on the disk, and its undoing.

A process writes a line before the first change of a file, so that whoever reads the journal backwards can undo what
was done, after a SIGKILL too. A file that was there before the check is moved into a directory near it, on the same
disk, and a copy takes its name: the original is never written to. What a trial makes is only named.

What C++ or another program writes has no line; `sweeper.checks.disk` finds that by its effect.
"""

import contextlib
import functools
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.files.recorder import RECORDER
from sweeper.files.walk import ASIDE
from sweeper.support.paths import nobodys

ROOTS = "SWEEPER_CHECK_ROOTS"
"""Environment variable with the directories of a check, as JSON, for the processes that it starts."""

MOST_COPIED = 2**30
"""Size (bytes) above which no copy takes a file's name: its changes are reported, and not undone."""

PROCESSES = "processes"
"""File with the ids of the processes that work for the check."""

CHANGES = "changes"
COPY = "copy-"
PRIVATE = 0o700
"""Mode of a directory with files that were set aside: some may be nobody else's to read."""

OWNER = "owner"
"""File beside what is kept, with the directory that has the journal."""


@dataclass
class Keeper:
    """Keeper of the files that this process is about to change.

    Attributes:
        roots: The directories of the check; the first one has the journal.
        names: Whether what this process makes is named: it is a trial's. What the study's import makes is input.
        made: Paths that trials of the check have made.
    """

    roots: Sequence[str]
    names: bool = False
    made: set[str] = field(default_factory=set)
    _met: set[str] = field(default_factory=set)
    # Two threads may change one file, which must be kept once.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def changes(self, path: str, *, truncates: bool = False) -> None:
        """Keep a file whose content is about to change, or name it if it is about to be made."""
        with self._lock:
            status = self._first(path)
            if status is None or not stat.S_ISREG(status.st_mode):
                return
            can_keep = os.access(Path(path).parent, os.W_OK)
            if not can_keep or (status.st_size > MOST_COPIED and not truncates):
                self._note(large=path, state=[status.st_size, status.st_mtime_ns])
                return
            original = self._keep(path)
            copy = original.with_name(f"{COPY}{original.name}")
            if truncates:
                copy.touch(stat.S_IMODE(status.st_mode))
            else:
                shutil.copy2(path, copy)
            _second_name(path, original)
            # The copy is complete before it takes the name, so that readers find a whole file.
            copy.replace(path)

    def makes(self, path: str) -> None:
        """Name a directory that is about to be made."""
        with self._lock:
            self._first(path)

    def removes(self, path: str) -> None:
        """Keep a file whose name is about to be removed or given to another one."""
        with self._lock:
            status = self._first(path)
            if status is None or stat.S_ISDIR(status.st_mode):
                return
            if _second_name(path, self._keep(path)):
                Path(path).touch()

    def empties(self, path: str) -> None:
        """Keep a directory that is about to be removed with all that is in it."""
        with self._lock:
            status = self._first(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                Path(path).rename(self._keep(path))
                Path(path).mkdir()

    def removes_directory(self, path: str) -> None:
        """Note that an empty directory is about to be removed."""
        with self._lock:
            if self._first(path) is not None:
                self._note(emptied=path)

    def moves(self, source: str, target: str) -> None:
        """Note that a file or a directory is about to get another path."""
        self.removes(target)
        with self._lock:
            if source not in self.made and not _is_nobodys(source):
                self._note(moved=source, to=target)
                self._is_users(target)

    def links(self, _source: str, target: str) -> None:
        """Note that a file is about to get another name, by which it may be changed later."""
        if not _is_nobodys(target):
            self._note(linked=target)
            self._is_users(target)

    def _is_users(self, path: str) -> None:
        """Let the first change of what a path is about to name be kept."""
        self._met.discard(path)
        self.made.discard(path)

    def _first(self, path: str) -> os.stat_result | None:
        """Return the status of a file that was there before the check, at its first change; name one to be made."""
        if path in self._met or path in self.made or _is_nobodys(path):
            return None
        self._met.add(path)
        try:
            return os.lstat(path)
        except OSError:
            self.made.add(path)
            if self.names:
                self._note(made=path)
            return None

    def _keep(self, path: str) -> Path:
        """Note that a file is kept, and return under which path, on the same disk."""
        near = next((r for r in self.roots if path.startswith(r + os.sep)), str(Path(path).parent))
        aside = Path(near, ASIDE)
        if not aside.is_dir():
            aside.mkdir(PRIVATE, exist_ok=True)
            (aside / OWNER).write_text(self.roots[0])
            self._note(also=str(aside))
        target = aside / f"{time.time_ns():x}-{Path(path).name}"
        self._note(kept=path, under=str(target))
        return target

    def _note(self, **entry: Any) -> None:
        # One write to the end, because several processes write to it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(Path(self.roots[0], ASIDE, CHANGES), flags, 0o600)
        try:
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
        finally:
            os.close(descriptor)


def _is_nobodys(path: str) -> bool:
    skipped = nobodys(str(Path.cwd()))
    return path.startswith(skipped) or f"/{ASIDE}/" in path or "/__pycache__/" in path


def _second_name(path: str, target: Path) -> bool:
    """Give a file another name; return whether it is its only one, on a disk without links."""
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        Path(path).rename(target)
        return True
    return False


def keep_for_check(*, names: bool) -> None:
    """Keep what this process changes, if `sweeper check` started it; the recorder must be installed."""
    roots = json.loads(os.environ.get(ROOTS, "[]"))
    if not roots:
        _KEEPERS.clear()
        RECORDER.before_write = None
        return
    with RECORDER.unrecorded(), Path(roots[0], ASIDE, PROCESSES).open("a") as processes:
        processes.write(f"{os.getpid()}\n")
    entries = read_changes(Path(roots[0], ASIDE, CHANGES))
    users = {entry.get("linked", entry.get("to")) for entry in entries}
    keeper = Keeper(roots, names, {e["made"] for e in entries if "made" in e} - users)
    _KEEPERS[:] = [keeper]
    RECORDER.before_write = _before_write
    _listen()


_KEEPERS: list[Keeper] = []
"""The keeper of this process, which the hook finds here, because no hook can be removed."""


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hook)


def _before_write(path: str, truncates: bool) -> None:
    if path:
        with RECORDER.unrecorded():
            _KEEPERS[0].changes(path, truncates=truncates)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    method = _EVENTS.get(event)
    if method is None or not _KEEPERS or not RECORDER.records or isinstance(arguments[0], int):
        return
    with RECORDER.unrecorded():
        numbers = [argument for argument in arguments[1:] if isinstance(argument, int)]
        names = [
            argument for argument in arguments if isinstance(argument, str | bytes | os.PathLike)
        ]
        below = numbers[-len(names) :] or [-1] * len(names)
        paths = [_named(name, directory) for name, directory in zip(names, below, strict=False)]
        getattr(_KEEPERS[0], method)(*paths)


_EVENTS = {
    "os.link": "links",
    "os.mkdir": "makes",
    "os.remove": "removes",
    "os.rename": "moves",
    "os.rmdir": "removes_directory",
    "shutil.rmtree": "empties",
}


def _named(name: Any, directory: int) -> str:
    """Return the absolute path of a name, which may be a link's; a relative one may be below an open directory."""
    text = os.fsdecode(name)
    if directory >= 0 and not text.startswith("/"):
        text = f"/proc/self/fd/{directory}/{text}"
    above, last = os.path.split(text.rstrip("/"))
    return f"{os.path.realpath(above)}/{last}"


def read_changes(changes: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, without one that was cut off."""
    entries = []
    # Without a journal, nothing was changed.
    with contextlib.suppress(FileNotFoundError):
        for line in changes.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
    return entries
