"""Identity of processes, detection of ended ones, and their end with their parents.

A process is identified by its pid, pid namespace, boot and start time. The start time is measured
from the boot if possible, because wall-clock times change when the clock is set.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import psutil

_DEAD_STATES = ("Z", "X", "x")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of one process among all with the same pid.

    Attributes:
        host: The machine's name.
        boot_id: ``machine/boot/pid namespace``: pids are comparable only if all three are equal.
            The machine's part distinguishes machines of equal name.
        pid: The process id within that namespace.
        started: Start time, in seconds since the boot (on Linux) or the epoch.
    """

    host: str
    boot_id: str
    pid: int
    started: float

    @classmethod
    def here(cls) -> Self:
        pid = os.getpid()
        started = _started(pid)
        if started is None:
            started = psutil.Process(pid).create_time()
        return cls(socket.gethostname(), _boot_id(), pid, started)


def is_gone(process: ProcessIdentity) -> bool | None:
    """Return whether the process has ended; None if this process cannot know.

    That is so for another host, another pid namespace, and a process that the system hides. Hosts
    of equal name are distinguished by the machine's id; without one, another boot may be another
    host. A zombie process counts as ended.
    """
    if process.host != socket.gethostname():
        return None
    machine, boot, namespace = process.boot_id.split("/")
    here_machine, here_boot, here_namespace = _boot_id().split("/")
    if machine != here_machine:
        return None
    if boot != here_boot:
        return True if machine else None
    if namespace != here_namespace:
        return None
    try:
        started = _started(process.pid)
    except PermissionError:
        return None
    return started is None or started != process.started


def _started(pid: int) -> float | None:
    """Return the start time of process ``pid``, or None if there is no live one.

    Raises:
        PermissionError: The process exists, but the system hides it.
    """
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _started_elsewhere(pid)
    try:
        # The command's name, in parentheses, may itself contain spaces and parentheses.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # With hidepid, /proc hides a living process of another user; a signal 0 distinguishes it from one
        # that has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            raise PermissionError(f"process {pid} exists, and /proc does not show it") from None
        return None
    if fields[0] in _DEAD_STATES:
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _started_elsewhere(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error


def _boot_id() -> str:
    machine = _read("/etc/machine-id")
    boot = _read("/proc/sys/kernel/random/boot_id")
    if not boot:
        boot = f"{psutil.boot_time():.0f}"
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - a link to no path
    except OSError:
        namespace = ""
    return f"{machine}/{boot}/{namespace}"


@cache  # neither the machine nor its boot changes while a process lives
def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """On Linux, let the system kill this process when its parent dies; elsewhere the closed pipe ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """On Linux, make this process the parent of orphaned descendants.

    So daemons that a trial started can be found and killed with it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def fork() -> int:
    """Fork this process as `os.fork` does, without the warning of Python 3.12 and later about threads.

    Call it only where the threads are known to be harmless to a child, and say why.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        return os.fork()
