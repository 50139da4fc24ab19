"""Names of checkpoint directories, and the process that made an unfinished one.

A checkpoint is ``step-000000420``, or ``step-000000420.2`` when the same attempt took that step
again: a directory cannot be replaced by a rename, and removing the first before the second is
there would leave a moment with neither. ``step-000000420.corrupt-1`` was set aside by a reader.
``.writing-…`` and ``.deleting-…`` are unfinished work, and no reader takes them for a checkpoint.

Unfinished names carry who works on them, as `ProcessIdentity` has it, abridged: the host, the
machine, the boot, the process namespace, the process's id and when it started.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from itertools import count

from sweeper.support.processes import ProcessIdentity

_CHECKPOINT = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_SET_ASIDE = re.compile(r"step-\d{9,}(?:\.\d+)?\.corrupt-\d+")
_HASH = r"((?:[0-9a-f]{8})?)"
_UNFINISHED = re.compile(
    rf"\.(?:writing|deleting)-.+-h{_HASH}-m{_HASH}-b{_HASH}-n{_HASH}-p(\d+)-s([0-9.e+-]+)-\d+"
)
_UNFINISHED_BEFORE = re.compile(
    r"\.(?:writing|deleting)-.+-h[0-9a-f]{8}-b[0-9a-f]{8}-p\d+-s\d+-\d+"
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


def maker_of(name: str) -> ProcessIdentity | None:
    """Return the abridged identity of the process that made the unfinished directory ``name``; None if the name has none."""
    match = _UNFINISHED.fullmatch(name)
    if match is None:
        return None
    host, machine, boot, namespace, pid, started = match.groups()
    return ProcessIdentity(host, f"{machine}/{boot}/{namespace}", int(pid), float(started))


def is_unfinished_of_an_older_version(name: str) -> bool:
    """Return whether ``name`` is an unfinished directory of a version that did not record the machine."""
    return _UNFINISHED_BEFORE.fullmatch(name) is not None


def unfinished_name(work: str, name: str) -> str:
    """Return a new name for this process's unfinished ``work`` ("writing", "deleting")."""
    who = _this_process(os.getpid())
    machine, boot, namespace = who.boot_id.split("/")
    made_by = f"h{who.host}-m{machine}-b{boot}-n{namespace}-p{who.pid}-s{who.started!r}"
    return f".{work}-{name}-{made_by}-{next(_serial)}"


def aside_name(name: str, attempt: int) -> str:
    """Return what the damaged checkpoint ``name`` is called, the ``attempt``-th of its name."""
    return f"{name}.corrupt-{attempt}"


def is_set_aside(name: str) -> bool:
    """Return whether ``name`` is of a checkpoint that a reader set aside."""
    return _SET_ASIDE.fullmatch(name) is not None


@cache
def _this_process(_pid: int) -> ProcessIdentity:
    return ProcessIdentity.here().abridged()
