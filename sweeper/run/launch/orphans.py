"""Orphans: processes that a trial started are adopted, and killed when the trial ends.

Each trial's process adopts what its own children leave behind, and the server that it was started
from adopts what the trial itself leaves. So the server's children are the trials, and what dead
trials have left: the latter are killed before anybody learns that the trial has ended, and could
begin its next attempt beside them.

The server's own end is the driver's, which may be killed at any moment. A process that the kernel
kills in turn can clean up nothing, so the server is not killed by the kernel: it has a watcher,
outside of the terminal's process group, that kills it with everything below it once the driver is
gone, even where all of that group stands still.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection

import psutil

from sweeper.run.launch.trial_process import kill_tree, running
from sweeper.support.processes import adopt_orphans, die_with_parent

_TRACKER = "multiprocessing.resource_tracker"
_PATIENCE = 2.0
"""Seconds after which processes of other users, which cannot be killed, are ignored."""

_PATIENCE_WITH_OURS = 30.0
"""Seconds for killed processes to end."""

_LOOK = 0.005


def kill_orphans(but: Collection[int]) -> set[int]:
    """Kill this process's children, and all below them, except for those ``but``.

    Python's resource tracker is left to itself: it frees the shared memory of the dead, and ends.

    Returns:
        Those that are still there: another user's after two seconds, ours after half a minute.
    """
    began = time.monotonic()
    while True:
        orphans = [
            child
            for child in psutil.Process().children()
            if child.pid not in but and not _ends_by_itself(child)
        ]
        patience = _PATIENCE_WITH_OURS if any(map(_can_be_killed, orphans)) else _PATIENCE
        if not orphans or time.monotonic() - began > patience:
            return {orphan.pid for orphan in orphans}
        for orphan in orphans:
            kill_tree(orphan)
        time.sleep(_LOOK)


def start_watcher(driver: int, close: Callable[[], None]) -> int | None:
    """Start a watcher that kills this process and its descendants when the process ``driver`` ends.

    To be called while this process has one thread and no child.

    Args:
        driver: This process's parent.
        close: Closes, in the watcher, what it must not hold open.

    Returns:
        The watcher's id; None where the kernel kills this process alone instead.
    """
    adopt_orphans()
    try:
        ends = [os.pidfd_open(driver), os.pidfd_open(os.getpid())]
    except (AttributeError, OSError):
        die_with_parent()
        return None
    if os.getppid() != driver:
        os._exit(0)
    server = os.getpid()
    watcher = os.fork()
    if watcher:
        for end in ends:
            os.close(end)
        return watcher
    try:
        os.setsid()
        close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        _watch(server, *ends)
    finally:
        os._exit(0)


def _watch(server: int, driver_end: int, server_end: int) -> None:
    poll = select.poll()
    for end in (driver_end, server_end):
        poll.register(end, select.POLLIN)
    ended = {end for end, _ in poll.poll()}
    if server_end not in ended:
        kill_tree(running(server), spare=os.getpid())


def _can_be_killed(child: psutil.Process) -> bool:
    try:
        return os.geteuid() in (0, child.uids().effective)
    except psutil.Error:
        return False


def _ends_by_itself(child: psutil.Process) -> bool:
    try:
        return child.status() == psutil.STATUS_ZOMBIE or any(
            _TRACKER in word for word in child.cmdline()
        )
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
