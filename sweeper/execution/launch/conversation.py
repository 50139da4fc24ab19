"""The conversation with one trial process, from its start until it is gone.

Whoever starts a trial process, a worker, a replay or a rehearsal, receives its messages, answers
its questions, and sees to it that nothing of it is left. What differs between them is a
`TrialSupervisor`: what a message means, and when the process has to stop.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from sweeper.declared.space import CategoricalChoice
from sweeper.errors import Interrupted, ParameterError
from sweeper.events import Doing, StepsDone
from sweeper.execution.launch.trial_process import ExitStatus, Isolation, Launcher, TrialProcess
from sweeper.execution.protocol.evaluations import Evaluated
from sweeper.execution.protocol.exports import ModelExported
from sweeper.execution.protocol.messages import (
    Assignment,
    LastMessage,
    Message,
    Preparing,
    StepsReached,
)
from sweeper.execution.protocol.questions import Judge, Judged, Suggest, Suggested
from sweeper.execution.protocol.replays import Rehearsed

POLL_INTERVAL = 0.1
"""Seconds that a supervisor usually waits for a message before it looks at other things again."""

_REST_OF_MESSAGE = 60.0
"""Seconds after which the rest of a message that a running trial began will not come."""

_EXIT_PATIENCE = 10.0
"""Seconds that a process has, after its last message or the end of its pipe, to exit by itself."""


class TrialSupervisor(ABC):
    """What one trial process is started for."""

    def started(self, pid: int, isolation: Isolation) -> None:
        """Called once the process is there, before anything is received."""
        del pid, isolation

    @abstractmethod
    def poll(self, process: TrialProcess) -> float | None:
        """Called before each wait for a message. It may send, kill, or raise to end it all.

        Returns:
            Seconds to wait; None where nothing more is needed, and the process is killed.
        """

    @abstractmethod
    def handle(self, message: Message) -> Message | None:
        """Take one message; the answer, where the trial asked something."""


class Stopping(Protocol):
    """Request to end at once; a `threading.Event` is one."""

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
        """Take a message that asks nothing."""

    def is_pruned(self, question: Judge) -> bool:
        """Return whether the trial ends here."""
        del question
        return False

    def is_enough(self) -> bool:
        """Return whether nothing more is needed of the process."""
        return False


def converse(launcher: Launcher, assignment: Assignment, supervisor: TrialSupervisor) -> ExitStatus:
    """Start a trial process, receive what it sends until it ends, and return how it ended.

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
    """Return the event for a message that says how far ``trial`` is."""
    if isinstance(message, Preparing):
        return Doing(message.stage, trial)
    return StepsDone(trial, message.epoch, message.step)


def send(process: TrialProcess, message: Message) -> None:
    """Send, unless the trial is gone: the end of its pipe will tell."""
    with contextlib.suppress(OSError):
        process.channel.send(message, waits=False)


def _receive_all(process: TrialProcess, supervisor: TrialSupervisor) -> bool:
    """Receive until the last message or the end of the pipe; False where it came to neither."""
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
    """The next message, None after ``timeout`` seconds, and whether no other can come."""
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
