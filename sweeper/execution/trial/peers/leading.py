"""The first process of a trial that has several: it decides for all, and notices when one is lost.

Each of the others has a pipe to it. At the pipe's end without a last word the other process is dead,
and the first one, which may be waiting for it in the middle of a step, says so to the worker and ends
at once: the attempt has crashed, and the next one begins with all processes anew. The others die with
the first: the kernel kills them, and their pipe's end would tell them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.errors import ParameterError
from sweeper.execution.protocol.channel import Link
from sweeper.execution.protocol.framing import GarbledError
from sweeper.execution.protocol.messages import Assignment, Failed, Message
from sweeper.execution.protocol.peers import Agreed, ClusterJoined, PeerDone, ResumedFrom
from sweeper.execution.protocol.questions import Suggest, Suggested
from sweeper.execution.trial.peers.member import PeerProcess
from sweeper.execution.trial.peers.observing import LeadingObserver
from sweeper.execution.trial.peers.states import merged, state_of
from sweeper.execution.trial.peers.transfer import ask
from sweeper.training.loop.plan import Observer
from sweeper.training.replicas.lockstep import Lockstep
from sweeper.training.replicas.multiworker import ClusterTask, free_addresses

_PATIENCE = 10.0
"""Seconds in which an error that a lost process causes is followed by the news of its death."""

_OWN_ERROR = 1.0
"""Seconds that the first process's own error may come after another's: mostly they are the same one."""

_EXIT = 1.0
"""Seconds for which a process that has closed its pipe is waited for."""


class TrialProcesses(Lockstep, Protocol):
    """What a trial asks of its processes, be it one or several; see `FirstProcess`."""

    @property
    def task(self) -> ClusterTask | None: ...

    def check(self, strategy: object, trial: Any, *, rehearsed: bool) -> None: ...

    def resume_from(self, loaded: LoadedCheckpoint | None) -> LoadedCheckpoint | None: ...

    def watching(self, observer: Observer) -> Observer: ...

    def gather(self, snapshot: Snapshot) -> Snapshot: ...

    def finish(self, step: int) -> None: ...


class FirstProcess:
    """The first process's side of a trial of several.

    Args:
        link: To the worker.
        peers: The other processes, in their order.
        assignment: The trial's; each of the others gets it with a directory of its own.

    Raises:
        ClusterError: There are no ports for them.
    """

    def __init__(self, link: Link, peers: Sequence[PeerProcess], assignment: Assignment) -> None:
        self._link = link
        self._peers = tuple(peers)
        self._suggesting = threading.Lock()
        self._reporting = threading.Lock()
        self._failing = threading.Event()
        self._lost = threading.Event()
        self._done = [threading.Event() for _ in self._peers]
        self.task = ClusterTask(0, free_addresses(len(self._peers) + 1))
        for index, peer in enumerate(self._peers, 1):
            own = replace(assignment, files=f"{assignment.files}/process-{index}")
            self._say(peer, own)
            self._say(peer, ClusterJoined(index, self.task.addresses))
            threading.Thread(
                target=self._listen, args=(index, peer), name=f"sweeper-peer-{index}", daemon=True
            ).start()

    def agree(self, what: str, at: int, value: int) -> int:
        """Tell the others what was decided; see `Lockstep`."""
        self._say_all(Agreed(what, at, int(value)))
        return value

    def check(self, strategy: object, trial: Any, *, rehearsed: bool) -> None:
        """Nothing is to be refused: the processes are there."""

    def watching(self, observer: Observer) -> Observer:
        """``observer``, deciding for all processes, and given the state of all."""
        return LeadingObserver(observer, self, self.gather)

    def resume_from(self, loaded: LoadedCheckpoint | None) -> LoadedCheckpoint | None:
        """Tell the others what to go on from, and return this process's own part of it.

        Raises:
            RestoreError: It is of another number of processes.
        """
        self._say_all(ResumedFrom(None if loaded is None else str(loaded.path)))
        return None if loaded is None else state_of(loaded, 0, self.task.processes)

    def gather(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the state of all other processes, which take theirs at the same step.

        Raises:
            EOFError, OSError: One of them is gone.
            UncapturableError: One has a variable that this process lacks.
        """
        return merged(snapshot, ask([peer.states for peer in self._peers], snapshot))

    def finish(self, step: int) -> None:
        """Wait until all others have come to the end, too.

        Raises:
            FactoryError: Never: one that came to something else says so, and the attempt ends.
        """
        self.agree("the end", step, 0)
        for done in self._done:
            done.wait()

    def wait_for_cause(self, error: BaseException) -> None:
        """Before ``error`` is reported: where another process was lost, that is what is reported.

        Returns only if none was.
        """
        if _may_follow_from_loss(error) and self._lost.wait(_PATIENCE):
            threading.Event().wait()
        self._failing.set()

    def _listen(self, index: int, peer: PeerProcess) -> None:
        failed: Failed | None = None
        while failed is None:
            try:
                message = peer.channel.receive()
            except (EOFError, OSError, GarbledError) as error:
                if self._done[index - 1].is_set():
                    return
                self._lost.set()
                failed = self._loss(index, peer, error)
                break
            if isinstance(message, Suggest):
                self._say(peer, self._suggested(message))
            elif isinstance(message, PeerDone):
                self._done[index - 1].set()
            elif isinstance(message, Failed):
                if self._failing.wait(_OWN_ERROR):
                    return
                self._lost.set()
                name = f"process {index} of the trial's {self.task.processes}"
                failed = replace(message, error=f"{message.error} (in {name})")
        with self._reporting:
            self._link.send(failed)
            os._exit(0)

    def _loss(self, index: int, peer: PeerProcess, error: Exception) -> Failed:
        how = peer.ended(_EXIT) if not isinstance(error, GarbledError) else f"sent {error}"
        return Failed(
            f"process {index} of the trial's {self.task.processes} {how}, so the others were ended, too; "
            "all of them begin again together",
            fault="crash",
        )

    def _suggested(self, question: Suggest) -> Suggested:
        """The worker's answer; it answers one question at a time."""
        try:
            with self._suggesting:
                return Suggested(self._link.suggest(question.name, question.distribution))
        except ParameterError as error:
            return Suggested(None, str(error))

    def _say_all(self, message: Message) -> None:
        for peer in self._peers:
            self._say(peer, message)

    def _say(self, peer: PeerProcess, message: Message) -> None:
        try:
            peer.channel.send(message)
        except OSError:
            # Who listens to it says how it ended; nothing goes on without it.
            threading.Event().wait(_PATIENCE)
            os.kill(os.getpid(), signal.SIGKILL)


def _may_follow_from_loss(error: BaseException) -> bool:
    if isinstance(error, EOFError | OSError):
        return True
    import tensorflow as tf

    return isinstance(error, tf.errors.OpError)
