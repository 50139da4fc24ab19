"""When a checkpoint is due: by steps, epochs, seconds, or as often as costs under 1%."""

import pytest

from sweeper import Every
from sweeper.checkpoint.format import Snapshot
from sweeper.train.loop.plan import Observer
from sweeper.train.state.state import Position


class Training:
    """A training of steps of known length, and checkpoints of known cost, by a clock of its own."""

    def __init__(self, every, *, step=0.01, stall=0.0):
        self.now = 100.0
        self.observer = Observer(every, clock=lambda: self.now)
        self.observer.writer = self
        self.step = step
        self.stall = stall
        self.taken = []
        self.stalled = 0.0

    def submit(self, snapshot):
        self.now += self.stall
        self.stalled += self.stall
        self.taken.append(snapshot.step)

    def run(self, steps, *, begin=0, epoch_steps=10):
        self.observer.started(Position(begin, begin // epoch_steps), 0)
        for number in range(begin + 1, begin + steps + 1):
            self.now += self.step
            position = Position(number, number // epoch_steps)
            if self.observer.is_due(position):
                self.observer.keep(Snapshot(number, position.epoch, {}, {}, {}, ()))
                assert not self.observer.is_due(position), "never twice at one step"
        return self.taken


@pytest.mark.parametrize(
    ("every", "steps", "begin", "taken"),
    [
        (Every(steps=7), 25, 0, [7, 14, 21]),
        (Every(steps=7), 10, 12, [14, 21]),
        (Every(epochs=2), 50, 0, [20, 40]),
        (Every(epochs=2), 30, 25, [40]),
        (Every(seconds=0.035), 12, 0, [4, 8, 12]),
        (Every(steps=8, epochs=1), 25, 0, [8, 10, 16, 20, 24]),
    ],
    ids=str,
)
def test_a_checkpoint_is_due_by_what_is_counted_over_the_whole_trial(every, steps, begin, taken):
    """Also after a resume; seconds from the last checkpoint; of two whichever is due first."""
    assert Training(every).run(steps, begin=begin) == taken


@pytest.mark.parametrize("stall", [0.001, 0.05, 0.5])
def test_auto_keeps_the_stall_under_one_percent(stall):
    training = Training("auto", step=0.01, stall=stall)
    start = training.now
    training.run(40_000)
    assert training.taken
    share = training.stalled / (training.now - start)
    assert share <= 0.0101


def test_auto_is_as_often_as_that_allows():
    """Negative control: an interval that never comes would cost nothing either."""
    cheap = Training("auto", step=0.01, stall=0.001).run(40_000)
    dear = Training("auto", step=0.01, stall=0.5).run(40_000)
    assert len(cheap) > 350, "about one a second of 400"
    assert 6 <= len(dear) <= 9, "about one in fifty seconds of 400"


@pytest.mark.parametrize(("every", "steps"), [(Every(steps=7), 5), (Every(epochs=1), 1 << 30)])
def test_blocks_of_steps_end_where_a_checkpoint_is_due(every, steps):
    assert Observer(every).steps_until_due(Position(9)) == steps


def test_the_cost_of_a_snapshot_is_all_that_training_waits_for():
    """From asking whether one is due to its being handed over: its capture, and the write before."""
    training = Training("auto", stall=0.5)
    keeper = training.observer
    keeper.started(Position(), 0)
    training.now += 2.0
    assert keeper.is_due(Position(step=1))
    training.now += 0.25
    keeper.keep(Snapshot(1, 0, {}, {}, {}, ()))
    training.now += 74.9
    assert not keeper.is_due(Position(step=2)), "0.75 s may come every 75 s"
    training.now += 0.2
    assert keeper.is_due(Position(step=2))
