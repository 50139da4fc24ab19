"""A slot's lanes, as their supervisors see them, with a process that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sweeper.run.launch.lane_group import LaneGroup
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import (
    Assignment,
    LaneEnded,
    Message,
    NoMoreLanes,
    OfLane,
    Preparing,
    Stop,
    StoppedHere,
)


def assignment(number: int) -> Assignment:
    return Assignment(
        study="small",
        number=number,
        attempt=1,
        seed=0,
        epochs=1,
        objective="loss",
        deterministic=True,
        threads=1,
        checkpoint_every="epoch",
        files="files",
        log="log",
        checkpoints=(),
        lanes=3,
    )


class Played:
    """A process without one: what the worker sends is received, and what it should send is sent, by hand."""

    def __init__(self, first: Assignment) -> None:
        self.first = first
        self.pid = 77
        self.channel, theirs = Channel.pair()
        self.theirs = Channel.on(theirs.detach())
        self._ended = threading.Event()
        self._status: ExitStatus | None = None

    def says(self, lane: int, message: Message) -> None:
        self.theirs.send(OfLane(lane, message))

    def ends(self, code: int) -> None:
        self._status = ExitStatus(code)
        self._ended.set()
        self.theirs.close()

    def wait(self, timeout: float) -> ExitStatus | None:
        self._ended.wait(timeout)
        return self._status

    def kill(self) -> None:
        if self._status is None:
            self.ends(-9)


class Playing:
    """A launcher of played processes."""

    isolation = "fork"

    def __init__(self) -> None:
        self.processes: list[Played] = []

    def launch(self, first: Assignment) -> Played:
        self.processes.append(Played(first))
        return self.processes[-1]

    def close(self) -> None: ...


@pytest.fixture
def launcher() -> Iterator[Playing]:
    launcher = Playing()
    yield launcher
    for each in launcher.processes:
        each.kill()


def test_lanes_are_added_to_the_process_and_hear_only_what_is_theirs(launcher: Playing) -> None:
    group = LaneGroup(launcher, 3)  # type: ignore[arg-type]
    one, other = group.launch(assignment(3)), group.launch(assignment(4))
    (process,) = launcher.processes
    assert process.first.grouped
    added = process.theirs.receive(10)
    assert isinstance(added, OfLane)
    assert (added.lane, added.message.kind) == (1, "assignment")
    process.says(1, Preparing("building"))
    assert other.channel.receive(10) == Preparing("building")
    assert one.channel.receive(0) is None
    one.channel.send(Stop(), waits=False)
    assert process.theirs.receive(10) == OfLane(0, Stop())


def test_a_lane_that_ends_leaves_the_others_and_the_last_one_ends_the_process(
    launcher: Playing,
) -> None:
    group = LaneGroup(launcher, 3)  # type: ignore[arg-type]
    one, other = group.launch(assignment(0)), group.launch(assignment(1))
    (process,) = launcher.processes
    process.theirs.receive(10)
    for lane, each in ((0, one), (1, other)):
        process.says(lane, StoppedHere(5))
        process.says(lane, LaneEnded())
        assert each.channel.receive(10) == StoppedHere(5)
        assert each.wait(10) == ExitStatus(0)
        each.kill()
        each.channel.close()
        assert process.wait(0) is None
    ending = threading.Thread(target=group.rest)
    ending.start()
    assert process.theirs.receive(10) == NoMoreLanes()
    process.ends(0)
    ending.join()
    group.launch(assignment(2))
    assert len(launcher.processes) == 2


def test_what_kills_one_lane_kills_all_and_the_others_are_told_because_of_which(
    launcher: Playing,
) -> None:
    group = LaneGroup(launcher, 3)  # type: ignore[arg-type]
    one, other = group.launch(assignment(6)), group.launch(assignment(7))
    one.kill()
    for each in (one, other):
        with pytest.raises(EOFError):
            each.channel.receive(10)
    assert one.wait(10) == ExitStatus(-9)
    status = other.wait(10)
    assert status is not None
    assert status.killed
    assert "trial 6 had to be killed" in status.because


def test_a_death_that_nobody_asked_for_is_every_lanes_own(launcher: Playing) -> None:
    group = LaneGroup(launcher, 3)  # type: ignore[arg-type]
    lanes = [group.launch(assignment(number)) for number in (0, 1)]
    launcher.processes[0].ends(-11)
    assert [lane.wait(10) for lane in lanes] == [ExitStatus(-11)] * 2
