"""The one decision of a second replay, for `sweeper verify` and audits: when it is run, and what it excuses."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from checkpoints_on_disk import Planted, write
from scripted_trials import definition

from sweeper.records.results import EpochRecord
from sweeper.replay.comparison import errors
from sweeper.replay.reports import Authored, StudyAuthors
from sweeper.run.protocol.messages import CheckpointCommitted
from sweeper.run.replays import Answers, ComparedReplay, Replayed, ReplayOrder

WEIGHTS = Planted(["model/00000", 2])
COUNT = Planted(["user_state", "changed", "callback Count", "set", "count"])
SECONDS = Planted(["user_state/callback Count.seconds", 0])
NOBODY = Authored("nobody")
SETTINGS = definition(name="small", epochs=2, objective="val_loss").settings()


@dataclass
class Ran:
    """What the replays give in turn: a checkpoint an epoch, and the epochs' metrics."""

    checkpoints: Sequence[Sequence[Path]]
    metrics: Sequence[Mapping[str, float]]
    authors: StudyAuthors
    orders: list[ReplayOrder] = field(default_factory=list)

    def __call__(self, order, *_more):
        number = len(self.orders)
        self.orders.append(order)
        replayed = Replayed(authors=self.authors)
        for epoch, path in enumerate(self.checkpoints[number], start=1):
            replayed.epochs[epoch - 1] = EpochRecord(epoch - 1, self.metrics[number])
            done = CheckpointCommitted(8 * epoch, epoch, "digest", 1, str(path))
            replayed.checkpoints[done.step, done.epoch] = done
            if (done.step, done.epoch) == order.ends_at:
                replayed.reached = done
                break
        return replayed


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Compares a trial of two equal checkpoints with replays that end as is given."""
    whole = write(tmp_path / "whole")

    def run(*replays, metrics=({}, {}), stored=None, measured=frozenset()):
        authors = StudyAuthors(NOBODY, NOBODY, (Authored("Count", measured=measured),))
        ran = Ran([[each or whole for each in replay] for replay in replays], metrics, authors)
        monkeypatch.setattr("sweeper.run.replays.run_again", ran)
        found = ComparedReplay(
            prepare=lambda _: ReplayOrder(SETTINGS, 0, Answers({}, {}), ((8, 1), (16, 2))),
            directory=tmp_path / "replays",
            references={(8, 1): whole, (16, 2): whole},
            files="",
            launchers=(),
            stopping=threading.Event(),
            epochs={} if stored is None else {0: stored, 1: stored},
        ).run()
        return found, ran

    return run


SAME = (None, None)


def test_a_replay_that_is_the_same_is_run_once(compared):
    found, ran = compared(SAME, metrics=[{"loss": 0.5}], stored={"loss": 0.5})
    assert (len(ran.orders), found.again, found.repeats, found.differences) == (1, None, None, [])
    assert [each.tensors for each in found.checkpoints.values()] == [17, 17]


@pytest.mark.parametrize("repeats", [True, False])
def test_weights_that_differ_are_run_again_and_are_never_excused(compared, tmp_path, *, repeats):
    changed = WEIGHTS.write(tmp_path / "changed", 5.0)
    again = changed if repeats else WEIGHTS.write(tmp_path / "again", 6.0)
    found, ran = compared((changed, changed), (again, again))
    assert len(ran.orders) == 2
    assert found.repeats is repeats
    assert [each.component for each in errors(found.differences)] == ["model", "model"]


def test_the_second_replay_excuses_a_measured_value_that_first_differs_at_the_last_checkpoint(
    compared, tmp_path
):
    early = COUNT.write(tmp_path / "early", 4)
    late = COUNT.write(tmp_path / "late", 4, also=(SECONDS.where, 9.0))
    timed = COUNT.write(tmp_path / "timed", 4, also=(SECONDS.where, 8.0))
    found, _ = compared((early, late), (early, timed))
    # The time differs between the replays, and the counter does not.
    notes = {each.name for each in found.differences if each.level == "note"}
    assert notes == {"callback Count, attribute 'seconds'"}
    counted = {each.name for each in errors(found.differences)}
    assert counted == {"callback Count, attribute 'count'"}
    assert found.repeats is True, "what is measured says nothing of it"


def test_a_measured_metric_is_excused_by_a_whole_second_replay_and_an_objective_never(compared):
    stored = {"loss": 0.5, "seconds": 1.0}
    metrics = [{"loss": 0.25, "seconds": 2.0}, {"loss": 0.75, "seconds": 3.0}]
    found, ran = compared(SAME, SAME, metrics=metrics, stored=stored)
    assert len(ran.orders) == 2
    assert {(each.path, each.level) for each in found.differences} == {
        (f"history/epochs/{epoch}/1/{name}", level)
        for epoch in (0, 1)
        for name, level in (("loss", "error"), ("seconds", "note"))
    }
    assert found.repeats is False


@pytest.mark.parametrize(("measured", "level"), [("seconds", "note"), ("others", "error")])
def test_a_metric_of_a_clock_that_two_replays_have_alike_is_excused_by_who_measures_it(
    compared, measured, level
):
    """A rounded time is easily the same in two replays."""
    metrics, stored = [{"seconds": 2.0}] * 2, {"seconds": 1.0}
    given = {"metrics": metrics, "stored": stored, "measured": frozenset({measured})}
    found, _ = compared(SAME, SAME, **given)
    assert {each.level for each in found.differences} == {level}
