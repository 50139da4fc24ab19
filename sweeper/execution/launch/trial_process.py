"""A trial's process as its worker sees it, however it was made: its channel, its end, its death."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.messages import Assignment

Isolation = Literal["auto", "fork", "spawn", "inline"]


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
