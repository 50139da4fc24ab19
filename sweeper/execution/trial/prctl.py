"""Linux's ``prctl``: a process that dies with its parent, and one that adopts orphans."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have Linux kill this process when its parent dies; elsewhere the pipe's end tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Have Linux make this process the parent of what its children leave behind.

    So that whoever kills a trial with all that it started finds a daemon of its making as well.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
