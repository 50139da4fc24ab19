"""A trial's process for its worker: channel, conversation and exit status.

Whoever starts a trial process, a worker, a replay or a rehearsal, receives its messages, answers
its questions, and sees to it that nothing of it is left. What differs between them is a
`TrialSupervisor`: what a message means, and when the process has to stop.
"""

from __future__ import annotations

import contextlib
import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import psutil

from sweeper.errors import Interrupted, ParameterError
from sweeper.records.events import Doing, StepsDone
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import (
    Assignment,
    Evaluated,
    Judge,
    Judged,
    LastMessage,
    Message,
    ModelExported,
    Preparing,
    Rehearsed,
    StepsReached,
    Suggest,
    Suggested,
)
from sweeper.spec.space import CategoricalChoice

Isolation = Literal["auto", "fork", "spawn", "inline"]


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """End of a process: its exit code, or minus the signal that killed it; None if unknown."""

    code: int | None

    def describe(self) -> str:
        """Return a description, such as ``was killed by SIGSEGV`` or ``exited with code 3``."""
        if self.code is None:
            return "vanished (its exit status is unknown)"
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was killed by {name}"

    @property
    def killed(self) -> bool:
        """Return whether it was SIGKILL, which the kernel uses when memory runs out."""
        return self.code == -signal.SIGKILL


class TrialProcess(Protocol):
    """A running trial process, seen from its worker."""

    @property
    def channel(self) -> Channel: ...

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> ExitStatus | None:
        """Return its exit status, or None if it still runs after ``timeout`` seconds."""
        ...

    def kill(self) -> None:
        """Kill it and all processes that it started."""
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
    """Return the process ``pid``, or None if it is gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def kill_tree(process: psutil.Process | None, spare: int | None = None) -> None:
    """Kill a process and all processes that it started; None is ignored.

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


POLL_INTERVAL = 0.1
"""Seconds that a supervisor usually waits for a message."""

_REST_OF_MESSAGE = 60.0
"""Seconds to wait for the rest of a message."""

_EXIT_PATIENCE = 10.0
"""Seconds for a process to exit after its last message or the end of its pipe."""


class TrialSupervisor(ABC):
    """Handler of the messages of one trial process."""

    def started(self, pid: int, isolation: Isolation) -> None:
        """Called once the process has started, before a message is received."""
        del pid, isolation

    @abstractmethod
    def poll(self, process: TrialProcess) -> float | None:
        """Called before each wait for a message. It may send, kill, or raise.

        Returns:
            Seconds to wait; None where nothing more is needed, and the process is killed.
        """

    @abstractmethod
    def handle(self, message: Message) -> Message | None:
        """Handle one message, and return the answer to a request."""


class Stopping(Protocol):
    """Interface of a request to end at once, such as a `threading.Event`."""

    def is_set(self) -> bool: ...


@dataclass
class WithoutDatabase(TrialSupervisor):
    """Supervisor of a trial process that has no worker: a replay, an evaluation, an export.

    Attributes:
        stopping: Ends the conversation when it is set.
        when_stopped: The message of `Interrupted` then.
    """

    stopping: Stopping
    when_stopped: str

    def poll(self, process: TrialProcess) -> float | None:
        del process
        if self.is_enough():
            return None
        if self.stopping.is_set():
            raise Interrupted(self.when_stopped)
        return POLL_INTERVAL

    def handle(self, message: Message) -> Suggested | Judged | None:
        if isinstance(message, Judge):
            return Judged(self.is_pruned(message))
        if not isinstance(message, Suggest):
            self.receive(message)
            return None
        try:
            return Suggested(self.value_of(message))
        except (LookupError, ParameterError) as error:
            return Suggested(None, error=str(error))

    @abstractmethod
    def value_of(self, question: Suggest) -> CategoricalChoice:
        """Return the value of a parameter.

        Raises:
            LookupError, ParameterError: There is none; the trial is told why.
        """

    @abstractmethod
    def receive(self, message: Message) -> None:
        """Handle a message that needs no answer."""

    def is_pruned(self, question: Judge) -> bool:
        """Return whether the trial ends here."""
        del question
        return False

    def is_enough(self) -> bool:
        """Return whether the process may end."""
        return False


def converse(launcher: Launcher, assignment: Assignment, supervisor: TrialSupervisor) -> ExitStatus:
    """Start a trial process, handle its messages until it ends, and return its exit status.

    However this ends, the process and all that it started are killed by then. A process that was
    killed has its pipe read to the end, since its last message may be in there.

    Raises:
        ExecutionError: The process could not be started.
        GarbledError: It sent what is no message.
        BaseException: What the supervisor raised.
    """
    process = launcher.launch(assignment)
    try:
        supervisor.started(process.pid, launcher.isolation)
        if not _receive_all(process, supervisor):
            process.kill()
        status = process.wait(_EXIT_PATIENCE)
        if status is None:
            process.kill()
            status = process.wait(_EXIT_PATIENCE)
        return status or ExitStatus(None)
    finally:
        process.kill()
        process.wait(_EXIT_PATIENCE)
        process.channel.close()


def progress_of(message: Preparing | StepsReached, trial: int) -> Doing | StepsDone:
    """Return the event for a message on the progress of ``trial``."""
    if isinstance(message, Preparing):
        return Doing(message.stage, trial)
    return StepsDone(trial, message.epoch, message.step)


def send(process: TrialProcess, message: Message) -> None:
    """Send a message; ignore a closed pipe."""
    with contextlib.suppress(OSError):
        process.channel.send(message, waits=False)


def _receive_all(process: TrialProcess, supervisor: TrialSupervisor) -> bool:
    """Receive until the last message or the end of the pipe; return False if neither was reached."""
    while True:
        wait = supervisor.poll(process)
        if wait is None:
            return False
        message, gone = _next_message(process, wait)
        if message is not None:
            answer = supervisor.handle(message)
            if answer is not None:
                send(process, answer)
        if gone or isinstance(message, LastMessage | Rehearsed | Evaluated | ModelExported):
            return True


def _next_message(process: TrialProcess, timeout: float) -> tuple[Message | None, bool]:
    """Return the next message (None after ``timeout`` seconds), and whether it is the last."""
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
    elif channel.connection.is_within_message and process.wait(_EXIT_PATIENCE) == ExitStatus(0):
        # One that was killed, or died, may have been in the middle of sending.
        channel.check_coming(0)
    return None, gone
