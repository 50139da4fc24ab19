"""What directories of checkpoints are called, and which process made an unfinished one.

A checkpoint is ``step-000000420``, or ``step-000000420.2`` when the same attempt took that step
again: a directory cannot be replaced by a rename, and removing the first before the second is
there would leave a moment with neither. ``step-000000420.corrupt-1`` was set aside by a reader.
``.writing-…`` and ``.deleting-…`` are unfinished work, and no reader takes them for a checkpoint.

Unfinished names carry who works on them: the host with its process namespace, the boot, the
process's id and when it started. A process's id alone returns after a reboot, and sooner in a
container, so only all of it together tells a dead writer from a living stranger.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import psutil
import xxhash

__all__ = ["CheckpointName", "ProcessIdentity", "aside_name", "is_set_aside", "unfinished_name"]

_CHECKPOINT = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_SET_ASIDE = re.compile(r"step-\d{9,}(?:\.\d+)?\.corrupt-\d+")
_UNFINISHED = re.compile(
    r"\.(?:writing|deleting)-.+-h([0-9a-f]{8})-b([0-9a-f]{8})-p(\d+)-s(\d+)-\d+"
)
_serial = count()


@dataclass(frozen=True, slots=True, order=True)
class CheckpointName:
    """The name of a whole checkpoint; the greater of two is the newer."""

    step: int
    revision: int = 1

    def __str__(self) -> str:
        suffix = "" if self.revision == 1 else f".{self.revision}"
        return f"step-{self.step:09d}{suffix}"

    @classmethod
    def parse(cls, name: str) -> CheckpointName | None:
        """Return what ``name`` says, or None if it is no whole checkpoint's name."""
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            return None
        parsed = cls(int(match[1]), int(match[2] or 1))
        return parsed if str(parsed) == name else None


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, told apart from every other that has or had the same id.

    Attributes:
        host: Hash of the host's name and process namespace.
        boot: Hash of the boot's id.
        pid: Its process id.
        started: When it started, in the system's own units since boot.
    """

    host: str
    boot: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return who calls."""
        return _identity(os.getpid())

    @classmethod
    def of_unfinished(cls, name: str) -> ProcessIdentity | None:
        """Return who made the unfinished directory ``name``, or None if it is no such name."""
        match = _UNFINISHED.fullmatch(name)
        return None if match is None else cls(match[1], match[2], int(match[3]), int(match[4]))

    def is_dead(self) -> bool:
        """Return whether the process is certainly gone. Of another host nothing is certain."""
        here = self.current()
        if self.host != here.host:
            return False
        return self.boot != here.boot or _started(self.pid) != self.started


def unfinished_name(work: str, name: str) -> str:
    """Return a new name for this process's unfinished ``work`` ("writing", "deleting")."""
    who = ProcessIdentity.current()
    return f".{work}-{name}-h{who.host}-b{who.boot}-p{who.pid}-s{who.started}-{next(_serial)}"


def aside_name(name: str, attempt: int) -> str:
    """Return what the damaged checkpoint ``name`` is called, the ``attempt``-th of its name."""
    return f"{name}.corrupt-{attempt}"


def is_set_aside(name: str) -> bool:
    """Return whether ``name`` is of a checkpoint that a reader set aside."""
    return _SET_ASIDE.fullmatch(name) is not None


@cache
def _identity(pid: int) -> ProcessIdentity:
    namespace = Path("/proc/self/ns/pid")
    host = socket.gethostname() + (str(namespace.readlink()) if namespace.is_symlink() else "")
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    boot = boot_id.read_text("ascii") if boot_id.exists() else f"{psutil.boot_time():.0f}"
    return ProcessIdentity(_short(host), _short(boot), pid, _started(pid) or 0)


def _started(pid: int) -> int | None:
    """Return when the process started, or None if there is none of this id.

    Linux counts it in ticks since boot, which no change of the clock moves.
    """
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    try:
        return int(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def _short(text: str) -> str:
    return xxhash.xxh32_hexdigest(text.encode())
