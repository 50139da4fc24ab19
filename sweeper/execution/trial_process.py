"""A trial's process as its worker sees it, however it was made: its channel, its end, its death."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from sweeper.execution.channel import Assignment, Channel, Message

__all__ = [
    "ExitStatus",
    "Isolation",
    "Launcher",
    "TrialProcess",
    "kill_tree",
    "next_message",
    "running",
]

Isolation = Literal["auto", "fork", "spawn", "inline"]

_REST_OF_MESSAGE = 60.0
"""Seconds after which the rest of a message that a running trial began will not come."""

_LAST_WORDS = 10.0
"""Seconds in which the exit status of a process is known whose pipe has ended."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: its exit code, or minus the signal that killed it; None if unknown."""

    code: int | None

    def describe(self) -> str:
        """For a person, such as ``was killed by SIGSEGV`` or ``exited with code 3``."""
        if self.code is None:
            return "vanished (its exit status is not known)"
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was killed by {name}"

    @property
    def killed(self) -> bool:
        """Whether it was SIGKILL, which the kernel uses when memory runs out."""
        return self.code == -signal.SIGKILL


class TrialProcess(Protocol):
    """A running trial process, seen from its worker."""

    @property
    def channel(self) -> Channel: ...

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> ExitStatus | None:
        """How it ended, or None if it still runs after ``timeout`` seconds."""
        ...

    def kill(self) -> None:
        """Kill it and everything that it started."""
        ...


class Launcher(Protocol):
    """Starts trial processes."""

    @property
    def isolation(self) -> Isolation: ...

    def launch(self, assignment: Assignment) -> TrialProcess:
        """Start a process for ``assignment``.

        Raises:
            ExecutionError: It could not be started.
        """
        ...

    def close(self) -> None: ...


def next_message(process: TrialProcess, timeout: float) -> tuple[Message | None, bool]:
    """The next message of a trial, and whether none comes after it.

    Args:
        process: The trial's.
        timeout: Seconds to wait for it; then there is None.

    Raises:
        GarbledError: What came is no message, or the beginning of one whose rest will not come.
    """
    channel, message = process.channel, None
    try:
        # A process that is gone may have started one that lives on and holds the pipe open.
        gone = process.wait(0) is not None
        message = channel.receive(0 if gone else timeout)
    except (EOFError, OSError):
        gone = True
    if message is not None:
        return message, False
    if not gone:
        channel.check_coming(_REST_OF_MESSAGE)
    elif channel.connection.is_within_message and process.wait(_LAST_WORDS) == ExitStatus(0):
        # One that was killed, or died, may have been in the middle of sending.
        channel.check_coming(0)
    return None, gone


def running(pid: int) -> psutil.Process | None:
    """The process ``pid``, or None if it is gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def kill_tree(process: psutil.Process | None, spare: int | None = None) -> None:
    """Kill a process and everything that it started; None is killed already.

    Args:
        process: The process.
        spare: The one of its children that does this.

    Each is stopped before any is killed, and looked at again until there is no new one: what is
    stopped starts nothing more, and the death of none makes another's parent unknown. One that
    runs under another user is nobody's here to stop; those of ours around it are.
    """
    if process is None:
        return
    family: dict[int, psutil.Process] = {}
    while True:
        try:
            found = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        new = [m for m in found if m.pid not in family and m.pid != spare]
        if not new:
            break
        for member in new:
            family[member.pid] = member
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                member.suspend()
    for member in family.values():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            member.kill()
