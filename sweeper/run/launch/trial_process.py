"""Trial process as its supervisor sees it: channel, conversation and exit status.

A worker, a replay and an evaluation all start a trial process, receive its messages, answer its requests,
and kill everything that it leaves running. They differ in their `TrialSupervisor`, which decides what a
message means and when the process has to stop.
"""

import contextlib
import json
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

import psutil

from sweeper.declarations.space import CategoricalChoice
from sweeper.errors import Interrupted, ParameterError
from sweeper.records.events import Doing, EpochFinished, StepsDone, TrainingStarted
from sweeper.records.results import Params
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Channel, IncompleteError

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
        """Return whether SIGKILL ended it, which the kernel sends when memory runs out."""
        return self.code == -signal.SIGKILL


class TrialProcess:
    """Running trial process, for its worker; the fork server reports its exit code on ``reports``."""

    def __init__(self, channel: Channel, reports: Connection, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self._reports = reports
        self._process = running(pid)
        self._status: ExitStatus | None = None

    def wait(self, timeout: float) -> ExitStatus | None:
        """Return its exit status, or None if it still runs after ``timeout`` seconds."""
        if self._status is None and self._reports.poll(timeout):
            ended = received_from(self._reports)
            self._status = ExitStatus(None if ended is None else ended["code"])
            self._reports.close()
        return self._status

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        status = self.wait(0)
        # With an exit code, the fork server has killed everything that the process started.
        if status is None or status.code is None:
            kill_tree(self._process)


def received_from(connection: Connection) -> dict[str, Any] | None:
    """Return the next report of a fork server, or request of its worker; None if that is dead."""
    try:
        reply: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return None
    return reply


class Launcher(Protocol):
    """Interface of objects that start trial processes."""

    @property
    def isolation(self) -> Isolation: ...

    def launch(self, assignment: messages.Assignment) -> TrialProcess:
        """Start a process for ``assignment``."""

    def close(self) -> None: ...


def running(pid: int) -> psutil.Process | None:
    """Return the process ``pid``, or None if it is gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def kill_tree(process: psutil.Process | None, spare: int | None = None) -> None:
    """Kill a process and all processes that it started, except ``spare``, which calls this; None is ignored.

    All processes are suspended before any is killed, and the search is repeated until it finds no new
    one: a suspended process starts no others, and a child can no longer be found after its parent has
    died. Processes of other users are skipped.
    """
    if process is None:
        return
    family: dict[int, psutil.Process] = {}
    while True:
        try:
            members = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        new = [m for m in members if m.pid not in family and m.pid != spare]
        if not new:
            break
        for member in new:
            family[member.pid] = member
            # Suspended first, so that none can start a child that the next look misses.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                member.suspend()
    for member in family.values():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            member.kill()


POLL_INTERVAL = 0.1
"""Seconds that a supervisor usually waits for a message."""

_EXIT_PATIENCE = 10.0
"""Seconds in which a process should exit after its last message or the end of its pipe."""


class TrialSupervisor(ABC):
    """Handler of the messages of one trial process."""

    def started(self, pid: int, isolation: Isolation) -> None:
        """Note that the process has started; no message has been received yet."""
        del pid, isolation

    @abstractmethod
    def poll(self, process: TrialProcess) -> float | None:
        """Return how many seconds to wait for the next message; None to kill the process.

        Called before each wait. It may send a message, kill the process, or raise an error.
        """

    @abstractmethod
    def handle(self, message: messages.Message) -> messages.Message | None:
        """Handle one message; return the answer if it is a request."""


def supervise_messages(
    launcher: Launcher, assignment: messages.Assignment, supervisor: TrialSupervisor
) -> ExitStatus:
    """Start a trial process, handle its messages until it ends, and return its exit status.

    The process and all its descendants are killed before this returns or raises. The pipe of a process
    that was killed is read to its end, because it may contain the process's last message.

    Raises:
        GarbledError: It sent something that is not a message.
        BaseException: The supervisor raised it.
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
        # After an error of the supervisor, the process may still run.
        process.kill()
        process.wait(_EXIT_PATIENCE)
        process.channel.close()


def progress_of(
    message: messages.Message, trial: int, params: Params, epochs: int
) -> Doing | StepsDone | TrainingStarted | EpochFinished | None:
    """Return the event for a message about the progress of ``trial``; None for any other message."""
    match message:
        case messages.Preparing():
            return Doing(message.stage, trial)
        case messages.StepsReached():
            return StepsDone(trial, message.epoch, message.step)
        case messages.Started():
            return TrainingStarted(
                trial,
                dict(params),
                epochs,
                message.steps_per_epoch,
                message.start_step,
                message.start_epoch,
            )
        case messages.EpochsEnded(epochs=(*_, last), seconds=float(seconds)):
            return EpochFinished(trial, last.epoch, message.step, last.metrics, seconds)
    return None


def send(process: TrialProcess, message: messages.Message) -> None:
    """Send a message; ignore a closed pipe."""
    with contextlib.suppress(OSError):
        process.channel.send(message)


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
        if gone or isinstance(message, messages.LastMessage | messages.Evaluated):
            return True


def _next_message(process: TrialProcess, timeout: float) -> tuple[messages.Message | None, bool]:
    """Return the next message (None after ``timeout`` seconds), and whether no more will come."""
    if process.wait(0) is not None:
        # A descendant of a process that has ended may still hold the pipe open.
        process.channel.end_receiving()
    try:
        return process.channel.receive(timeout), False
    except EOFError:
        return None, True
    except IncompleteError:
        # A process that was killed or crashed may have sent a part of a message.
        if process.wait(_EXIT_PATIENCE) == ExitStatus(0):
            raise
        return None, True


@dataclass
class Unattended(TrialSupervisor):
    """Supervisor of a process without a worker: of a replay or an evaluation.

    Attributes:
        answer: Returns the value of a parameter; a `LookupError` or `ParameterError` is sent to the trial.
        receive: Handles every message but requests and the last.
        stopping: Set when the process is to end, by an `Interrupted` with the message ``when_stopped``.
        prunes: Returns whether the trial ends after an epoch.
        is_enough: Returns whether the process may be killed now.
        last: Its last message; None before that.
    """

    answer: Callable[[messages.Suggest], CategoricalChoice]
    receive: Callable[[messages.Message], None]
    stopping: threading.Event
    when_stopped: str
    prunes: Callable[[messages.Judge], bool] = lambda _: False
    is_enough: Callable[[], bool] = lambda: False
    last: messages.LastMessage | messages.Evaluated | None = None

    def run(
        self, launcher: Launcher, assignment: messages.Assignment
    ) -> messages.LastMessage | messages.Evaluated | ExitStatus:
        """Run an assignment whose directories exist to its end.

        Returns:
            The process's last message; its exit status if it ended without one.

        Raises:
            Interrupted: ``stopping`` was set.
        """
        status = supervise_messages(launcher, assignment, self)
        return self.last or status

    def poll(self, process: TrialProcess) -> float | None:
        del process
        if self.is_enough():
            return None
        if self.stopping.is_set():
            raise Interrupted(self.when_stopped)
        return POLL_INTERVAL

    def handle(self, message: messages.Message) -> messages.Answered | None:
        match message:
            case messages.Judge():
                return messages.Answered(self.prunes(message))
            case messages.Suggest():
                try:
                    return messages.Answered(self.answer(message))
                except (LookupError, ParameterError) as error:
                    return messages.Answered(None, error=str(error))
            case (
                messages.Finished()
                | messages.StoppedHere()
                | messages.Failed()
                | messages.Evaluated()
            ):
                self.last = message
            case _:
                self.receive(message)
        return None
