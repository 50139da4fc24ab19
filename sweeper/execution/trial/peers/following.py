"""What another process of a trial has in place of a worker: the way to the first process.

In place of a worker it has the first process: it asks that one for parameters, and hands its state to it.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from sweeper.checkpoints.format import LoadedCheckpoint, Snapshot
from sweeper.declared.space import CategoricalChoice, Distribution
from sweeper.errors import FactoryError
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.framing import GarbledError, MessagePipe
from sweeper.execution.protocol.messages import Assignment, Failed, Message
from sweeper.execution.protocol.peers import Agreed, ClusterJoined, PeerDone, ResumedFrom
from sweeper.execution.protocol.questions import Judge, Judged, Suggest, Suggested
from sweeper.training.replicas.multiworker import ClusterTask

_EXIT_FIRST_GONE = 75

T = TypeVar("T", Suggested, ResumedFrom, Agreed, ClusterJoined, Assignment)


class PeerLink:
    """The way to the first process, in place of a worker. Ends the process when that one is gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._received: dict[type, queue.SimpleQueue[Message]] = {
            kind: queue.SimpleQueue()
            for kind in (Suggested, ResumedFrom, Agreed, ClusterJoined, Assignment)
        }
        self.task = ClusterTask(0, ())
        threading.Thread(target=self._listen, name="sweeper-link", daemon=True).start()

    def next(self, kind: type[T]) -> T:
        """The next message of that kind, once it is there."""
        message = self._received[kind].get()
        if not isinstance(message, kind):
            raise TypeError(type(message))
        return message

    def agree(self, what: str, at: int, value: int) -> int:
        """What the first process decided; see `Lockstep`.

        Raises:
            FactoryError: It has come to decide something else, or elsewhere.
        """
        del value
        agreed = self.next(Agreed)
        if (agreed.what, agreed.at) != (what, at):
            msg = (
                f"the processes of the trial went apart: {self.task} has come to {what} at step {at}, "
                f"and process 0 to {agreed.what} at step {agreed.at}. What callbacks and steps do must "
                "be the same in every process: not by the clock, or by the process"
            )
            raise FactoryError(msg)
        return agreed.value

    def send(self, message: Message) -> None:
        """Say what the first process cannot know: that this one failed, or is done."""
        if isinstance(message, Failed | PeerDone):
            self._say(message)

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        self._say(Suggest(name, distribution))
        return self.next(Suggested).accepted()

    def judge(self, question: Judge) -> Judged:
        """Nothing is asked here; the first process's answer is what is agreed."""
        del question
        return Judged(prune=False)

    def hold(self, step: int) -> None:
        """The first process holds, and this one waits for it."""

    def stop_requested(self) -> bool:
        return False

    def _say(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            _first_is_gone()

    def _listen(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                if message is not None and type(message) in self._received:
                    self._received[type(message)].put(message)
        except (EOFError, OSError, GarbledError):
            _first_is_gone()


@dataclass(frozen=True)
class Following:
    """What a training loop of this process is given in place of a worker's.

    Attributes:
        link: To the first process.
        states: Where it hands its state over.
    """

    link: PeerLink
    states: MessagePipe

    @property
    def task(self) -> ClusterTask:
        """Which process this is."""
        return self.link.task

    def give(self, snapshot: Snapshot) -> None:
        """Hand the state of this process to the first one, which is at the same step."""
        from sweeper.execution.trial.peers.transfer import answer

        try:
            answer(self.states, snapshot)
        except (EOFError, OSError):
            _first_is_gone()

    def loaded(self) -> LoadedCheckpoint | None:
        """What the first process goes on from.

        Raises:
            CheckpointError: It cannot be read here.
        """
        from sweeper.checkpoints.reading import load_checkpoint
        from sweeper.paths import parse_location

        path = self.link.next(ResumedFrom).path
        return None if path is None else load_checkpoint(parse_location(path))


def _first_is_gone() -> NoReturn:
    """End this process: the trial has ended, and nobody is left to take part with."""
    os._exit(_EXIT_FIRST_GONE)
