"""Launcher of a worker slot whose trials share a process, each in a lane of its own.

The first trial's process is started as any trial's is; it takes the others while it runs. Each lane is a
`TrialProcess` to its supervisor. What ends the process ends all of them: a lane that is killed, such as
for its time limit, takes the others along, and their exit status says because of which.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import replace

from sweeper.run.launch.trial_process import (
    EXIT_PATIENCE,
    POLL_INTERVAL,
    ExitStatus,
    Isolation,
    Launcher,
    TrialProcess,
    next_message,
    send,
)
from sweeper.run.protocol.channel import GarbledError
from sweeper.run.protocol.messages import (
    Assignment,
    LaneEnded,
    LaneMessage,
    Message,
    NoMoreLanes,
    OfLane,
)

_ROUNDS = 8
"""Trials that a process runs in each lane, about: what libraries never free goes with the process."""


class LaneGroup:
    """A `Launcher` that has up to so many trials share a process.

    Args:
        launcher: Starts the processes.
        lanes: How many trials at once; their lanes differ.
    """

    def __init__(self, launcher: Launcher, lanes: int) -> None:
        self._launcher = launcher
        self._lanes = lanes
        self._launching = threading.Lock()
        self._shared: _SharedProcess | None = None

    @property
    def isolation(self) -> Isolation:
        return self._launcher.isolation

    def launch(self, assignment: Assignment) -> TrialProcess:
        """Add a lane to the process that runs, or start one.

        Raises:
            ExecutionError: It could not be started.
        """
        grouped = replace(assignment, grouped=True)
        with self._launching:
            if self._shared is not None and self._shared.takes_more(self._lanes * _ROUNDS):
                return self._shared.add(grouped)
            self._retire()
            self._shared = _SharedProcess(self._launcher.launch(grouped))
            return self._shared.begin(grouped)

    def rest(self) -> None:
        """End the process if no trial runs in it, since none is to be added soon."""
        with self._launching:
            if self._shared is not None and self._shared.is_empty:
                self._retire()

    def close(self) -> None:
        """End the process, in which no trial runs."""
        with self._launching:
            self._retire()

    def _retire(self) -> None:
        """Have the process end with its last trial."""
        if self._shared is not None:
            self._shared.retire()
            self._shared = None


class _SharedProcess:
    """One process, and the lanes in it.

    Attributes:
        status: How it ended; None while it runs.
        killed_by: The trial because of which it was killed; None where none was to be.
    """

    def __init__(self, process: TrialProcess) -> None:
        self.process = process
        self.status: ExitStatus | None = None
        self.killed_by: int | None = None
        self.changed = threading.Condition()
        self._lanes: dict[int, _LaneProcess] = {}
        self._served = 0
        self._retired = False
        self._ending = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="sweeper-lanes", daemon=True)

    @property
    def is_empty(self) -> bool:
        return not self._lanes

    def takes_more(self, most: int) -> bool:
        """Return whether another lane may begin in it; ``most`` trials do in all, if others run there."""
        over = self.status is not None or self.killed_by is not None
        return not over and self._served < most

    def begin(self, assignment: Assignment) -> _LaneProcess:
        """Return the lane of the trial that the process was started for."""
        lane = self._open(assignment)
        self._reader.start()
        return lane

    def add(self, assignment: Assignment) -> _LaneProcess:
        """Return the lane of one more trial."""
        lane = self._open(assignment)
        send(self.process, OfLane(assignment.lane, assignment))
        return lane

    def kill(self, trial: int) -> None:
        """Kill the process because of ``trial``."""
        with self.changed:
            if self.killed_by is None and self.status is None:
                self.killed_by = trial
        self.process.kill()

    def retire(self) -> None:
        """Add no more lanes, and end the process once it has none."""
        self._retired = True
        self._end_if_done()

    def leave(self, lane: _LaneProcess) -> None:
        """Forget a lane whose trial has ended."""
        if self._lanes.get(lane.number) is lane:
            del self._lanes[lane.number]
        self._end_if_done()

    def _end_if_done(self) -> None:
        with self._ending:
            if not self._retired or self._lanes or not self._reader.is_alive():
                return
            send(self.process, NoMoreLanes())
            self._reader.join(EXIT_PATIENCE)
            self.process.kill()
            self._reader.join()

    def _open(self, assignment: Assignment) -> _LaneProcess:
        self._served += 1
        lane = self._lanes[assignment.lane] = _LaneProcess(self, assignment)
        return lane

    def _read(self) -> None:
        """Hand each message to its lane until no other can come."""
        last: EOFError | GarbledError = EOFError()
        try:
            gone = False
            while not gone:
                message, gone = next_message(self.process, POLL_INTERVAL)
                lane = self._lanes.get(message.lane) if isinstance(message, OfLane) else None
                if lane is not None and isinstance(message, OfLane):
                    lane.receive_later(message.message)
        except GarbledError as error:
            last = error
        status = self._exit_status()
        with self.changed:
            self.status = status
            self.changed.notify_all()
        for lane in list(self._lanes.values()):
            lane.end(last)
        self.process.channel.close()

    def _exit_status(self) -> ExitStatus:
        for _ in range(2):
            for _ in range(round(EXIT_PATIENCE / POLL_INTERVAL)):
                status = self.process.wait(POLL_INTERVAL)
                if status is not None:
                    return status
            self.process.kill()
        return ExitStatus(None)


class _LaneProcess:
    """One lane, as its supervisor sees it: a trial process, and its channel."""

    def __init__(self, shared: _SharedProcess, assignment: Assignment) -> None:
        self.number = assignment.lane
        self._trial = assignment.number
        self._shared = shared
        self._received: queue.SimpleQueue[LaneMessage | Exception] = queue.SimpleQueue()
        self._over = False

    @property
    def channel(self) -> _LaneProcess:
        return self

    @property
    def pid(self) -> int:
        return self._shared.process.pid

    @property
    def is_within_message(self) -> bool:
        return False

    def wait(self, timeout: float) -> ExitStatus | None:
        shared = self._shared
        with shared.changed:
            shared.changed.wait_for(lambda: self._over or shared.status is not None, timeout)
            if self._over:
                return ExitStatus(0)
            if shared.status is None or shared.killed_by in (None, self._trial):
                return shared.status
            because = f"trial {shared.killed_by} had to be killed, whose process this one shared"
            return replace(shared.status, because=because)

    def kill(self) -> None:
        """Kill the process, with all its lanes, unless this one is over."""
        if not self._over and self._shared.status is None:
            self._shared.kill(self._trial)

    def send(self, message: Message, *, waits: bool = True) -> None:
        if isinstance(message, OfLane):
            msg = f"{message!r} names its lane already"
            raise TypeError(msg)
        self._shared.process.channel.send(OfLane(self.number, message), waits=waits)

    def receive(self, timeout: float | None = None) -> Message | None:
        try:
            found = self._received.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            self._received.put(found)
            raise found
        return found

    def check_coming(self, patience: float) -> None:
        """Nothing: messages come whole."""

    def close(self) -> None:
        self._shared.leave(self)

    def receive_later(self, message: LaneMessage) -> None:
        """Take a message of the process's."""
        if not isinstance(message, LaneEnded):
            self._received.put(message)
            return
        with self._shared.changed:
            self._over = True
            self._shared.changed.notify_all()

    def end(self, last: EOFError | GarbledError) -> None:
        """Have whoever receives learn that nothing more comes."""
        self._received.put(last)
