"""Orphans: processes that a trial started, adopted and killed when the trial ends.

The fork server adopts the orphans of trials, so its children are the running trials and these. The
orphans are killed before the worker learns that the trial has ended, because the worker could then start
the next attempt while they still run.

The server must end when its driver ends, which may be killed at any moment. If the kernel killed the
server then, it could kill no orphans. So a watcher, a process outside of the terminal's process group,
kills the server with all descendants once the driver is gone, even if that whole group is suspended.
"""

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
"""Seconds after which processes of other users, which cannot be killed, are given up."""

_PATIENCE_WITH_OURS = 30.0
"""Seconds after which killed processes that have not ended are given up."""

_LOOK = 0.005
"""Seconds between two looks for orphans."""


def kill_orphans(but: Collection[int]) -> set[int]:
    """Kill this process's children, except for ``but``, with all their descendants.

    Python's resource tracker is spared: it frees the shared memory of ended processes, and exits.
    Returned are the children that still run: another user's after 2 seconds, this user's after 30.
    """
    began = time.monotonic()
    ended = set[int]()
    while True:
        children = [child for child in psutil.Process().children() if child.pid not in but]
        orphans = [child for child in children if not _ends_by_itself(child)]
        pids = {orphan.pid for orphan in orphans}
        ended_before = ended
        ended = {child.pid for child in children} - pids
        patience = _PATIENCE_WITH_OURS if any(map(_is_ours, orphans)) else _PATIENCE
        # A child that has just ended leaves its own children to this process: they are in the next look.
        if (not orphans and ended <= ended_before) or time.monotonic() - began > patience:
            return pids
        for orphan in orphans:
            kill_tree(orphan)
        time.sleep(_LOOK)


def start_watcher(driver: int, close: Callable[[], None]) -> int | None:
    """Start the process that kills this one and its descendants once its parent ``driver`` ends.

    This process must have one thread and no child. ``close`` is called in the watcher, to close descriptors that it must not hold open. Returned is its id;
    None if the kernel kills this process alone instead.
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


def _is_ours(child: psutil.Process) -> bool:
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
