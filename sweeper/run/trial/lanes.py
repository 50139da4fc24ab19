"""Trials of one process as lanes: each with its own link, log and end, stepping together.

The process's main thread listens to nothing but the queue of new trials, and takes the lanes' steps; each
trial runs in its lane's thread. A trial ends by its own last message and says then that its lane is
free. What ends the process ends all of them.

A trial without others is a lane of a group whose other lanes are padded, so its result is the same.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sweeper.definition.definition import StudyDefinition
from sweeper.guard.guard import Earlier
from sweeper.lanes.scheduler import Lane, LaneScheduler
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import (
    Assignment,
    LaneEnded,
    LaneMessage,
    Message,
    NoMoreLanes,
    OfLane,
)
from sweeper.run.trial.link import (
    AnsweredLink,
    failure_of,
    listen_to_worker,
    send_to_worker,
)
from sweeper.run.trial.run import run_trial


class LaneLink(AnsweredLink):
    """Link of one trial to its worker, over the process's channel."""

    def __init__(self, lane: int, send: Callable[[OfLane], None]) -> None:
        super().__init__()
        self._lane = lane
        self._send = send

    def deliver(self, message: LaneMessage) -> None:
        self._send(OfLane(self._lane, message))


class LaneLinks:
    """The process's side of a channel that its lanes share. Ends the process when the other side is gone.

    Args:
        channel: To the worker.
        first: The trial that the process was started for.

    Attributes:
        waiting: Trials to begin, each with its link; None once no other will come.
    """

    def __init__(self, channel: Channel, first: Assignment) -> None:
        self.waiting: queue.SimpleQueue[tuple[Assignment, LaneLink] | None] = queue.SimpleQueue()
        self._channel = channel
        self._links: dict[int, LaneLink] = {}
        self._stopping = threading.Event()
        self.first = self._begin(first)
        threading.Thread(target=self._listen, name="sweeper-link", daemon=True).start()

    def request_stop(self) -> None:
        """Stop every lane at its next step, and those that begin later."""
        self._stopping.set()
        for link in list(self._links.values()):
            link.request_stop()

    def _begin(self, assignment: Assignment) -> LaneLink:
        link = self._links[assignment.lane] = LaneLink(assignment.lane, self._send)
        if self._stopping.is_set():
            link.request_stop()
        self.waiting.put((assignment, link))
        return link

    def _send(self, message: OfLane) -> None:
        send_to_worker(self._channel, message)

    def _listen(self) -> None:
        listen_to_worker(self._channel, self._received, lambda: list(self._links.values()))

    def _received(self, message: Message | None) -> None:
        if isinstance(message, NoMoreLanes):
            self.waiting.put(None)
        elif isinstance(message, OfLane) and isinstance(message.message, Assignment):
            self._begin(message.message)
        elif isinstance(message, OfLane):
            self._links[message.lane].received(message.message)


def serve_lanes(definition: StudyDefinition, lanes: int, links: LaneLinks) -> None:
    """Train every trial that is assigned, until none is left and no more will be assigned.

    Args:
        definition: The study's.
        lanes: The study's number of them.
        links: To the worker; gives the trials.
    """
    scheduler, earlier = LaneScheduler(lanes), Earlier()
    while True:
        idle = len(scheduler.free) == lanes
        with contextlib.suppress(queue.Empty):
            began = links.waiting.get(block=idle)
            if began is None:
                return
            assignment, link = began
            scheduler.add(assignment.lane, _training(definition, assignment, link, earlier))
            continue
        scheduler.advance()


def refuse_lanes(error: BaseException, links: LaneLinks) -> None:
    """Report for every trial that is assigned that ``error`` prevents the process from running it."""
    while (began := links.waiting.get()) is not None:
        _, link = began
        link.send(failure_of(error, asked=False))
        link.send(LaneEnded())


def train_alone(assignment: Assignment, train: Callable[[Lane], None]) -> None:
    """Run ``train`` as the lane of the assignment's trial, without other trials.

    Raises:
        BaseException: What ``train`` raised.
    """
    scheduler = LaneScheduler(assignment.lanes)
    scheduler.add(assignment.lane, train)
    scheduler.run()


def _training(
    definition: StudyDefinition, assignment: Assignment, link: LaneLink, earlier: Earlier
) -> Callable[[Lane], None]:
    def train(lane: Lane) -> None:
        with _log(lane, assignment.log):
            try:
                run_trial(definition, assignment, link, earlier, lane)
            except BaseException as error:
                link.send(failure_of(error, asked=link.asked))
                with contextlib.suppress(OSError, ValueError):
                    traceback.print_exc()
        link.send(LaneEnded())

    return train


@contextmanager
def _log(lane: Lane, path: str) -> Iterator[None]:
    """Send what the process prints to the trial's own log while its lane runs."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def turn() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)

    lane.turns.append(turn)
    turn()
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os.close(log)
