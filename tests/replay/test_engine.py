"""The one order of a replay: the processes that it starts, what each is told, and what comes of them."""

import signal
import threading
from dataclasses import replace

import pytest
from scripted_trials import definition

from sweeper.replay.reports import Authored, Lengths, StudyAuthors
from sweeper.run import replays
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.messages import (
    CheckpointCommitted,
    Failed,
    Finished,
    ReplayBuilt,
    Started,
    Warned,
)
from sweeper.run.replays import Answers, Kill, ReplayDiedError, ReplayOrder, run_again

KILLED = ExitStatus(-signal.SIGKILL)

ORDER = ReplayOrder(
    settings=definition(name="small", epochs=3).settings(),
    number=0,
    answers=Answers({}, {}),
    checkpoints=((20, 1), (42, 2)),
)


def committed(directory, step, epoch):
    return CheckpointCommitted(step, epoch, "", 8, f"{directory}/step-{step:09d}")


def a_trial(assignment):
    """Take the checkpoints that it is told to take; die where it is told to; else come to its end."""
    order = assignment.replay
    directory = assignment.checkpoints[-1]
    taken = [committed(directory, step, epoch) for step, epoch in order.checkpoints]
    end = () if order.die_after is not None else (Finished(60, 0.5, "digest"),)
    return [Started(0, 0, 20), *taken, *end], KILLED if order.die_after else ExitStatus(0)


def ran(order, directory, monkeypatch, script=a_trial):
    """Run an order with two launchers; return the report, and who started which process."""
    told = []

    def converse(launcher, assignment, supervisor):
        told.append((launcher, assignment))
        messages, status = script(assignment)
        for message in messages:
            supervisor.handle(message)
            if supervisor.poll(None) is None:
                return KILLED
        return status

    monkeypatch.setattr(replays, "converse", converse)
    launchers = ("one", "other")
    replayed = run_again(order, launchers, directory, lambda _: None, threading.Event())
    return replayed, told


def test_each_kill_is_a_process_and_the_launchers_take_turns(tmp_path, monkeypatch):
    order = replace(ORDER, kills=(Kill(10, 21), Kill(30, 41)), ends_at=(42, 2), short=True)
    replayed, told = ran(order, tmp_path, monkeypatch)
    assert [launcher for launcher, _ in told] == ["one", "other", "one"]
    orders = [assignment.replay for _, assignment in told if assignment.replay is not None]
    assert [(each.also_after, each.die_after) for each in orders] == [
        (10, 21),
        (30, 41),
        (None, None),
    ]
    assert [len(assignment.checkpoints) for _, assignment in told] == [1, 2, 3]
    assert all(each.aside and each.short for each in orders)
    assert (replayed.reached.step, replayed.reached.epoch) == (42, 2)
    assert replayed.starts == [0, 0, 0]


def test_no_process_is_at_the_end_before_it_is_killed(tmp_path, monkeypatch):
    order = replace(ORDER, checkpoints=((40, 2),), kills=(Kill(20, 40),), ends_at=(40, 2))
    replayed, told = ran(order, tmp_path, monkeypatch)
    taken = [a.replay.checkpoints for _, a in told if a.replay is not None]
    assert taken == [(), ((40, 2),)]
    assert replayed.reached is not None
    assert len(replayed.processes) == 2


def test_a_replay_to_the_end_has_its_last_message(tmp_path, monkeypatch):
    replayed, told = ran(ORDER, tmp_path, monkeypatch)
    assert len(told) == 1
    assert replayed.end == Finished(60, 0.5, "digest")
    assert replayed.processes[0].bytes == 8


def test_a_death_that_was_not_asked_for_is_an_error_that_has_what_was_reported(
    tmp_path, monkeypatch
):
    with pytest.raises(ReplayDiedError, match="could not be run again to its end") as raised:
        ran(
            replace(ORDER, kills=(Kill(10, 20),)),
            tmp_path,
            monkeypatch,
            lambda _: ([Started(0, 0, 20)], ExitStatus(-signal.SIGSEGV)),
        )
    assert raised.value.how == "was killed by SIGSEGV"
    assert raised.value.replayed.starts == [0]


def test_a_failure_ends_the_replay_and_is_reported_to_whoever_ordered_an_interval(
    tmp_path, monkeypatch
):
    order = replace(ORDER, kills=(Kill(10, 20),), ends_at=(42, 2))
    failed = Failed("ValueError: no", fault="environment")
    replayed, told = ran(order, tmp_path, monkeypatch, lambda _: ([failed], ExitStatus(0)))
    assert (replayed.end, replayed.reached, len(told)) == (failed, None, 1)


def test_a_short_replay_reports_what_was_built_and_every_checkpoint(tmp_path, monkeypatch):
    authors = StudyAuthors(Authored("build_model"), Authored("load_data"))
    lengths = Lengths(100, 0, 6, None)

    def script(assignment):
        assert (assignment.replay.checkpoints, assignment.replay.short) == (None, True)
        directory = assignment.checkpoints[-1]
        return [
            Warned("the model is shared"),
            ReplayBuilt(authors, "weights", lengths),
            Warned("the data are read again"),
            Started(0, 0, 6),
            committed(directory, 1, 0),
            committed(directory, 6, 1),
            Finished(6, 0.5, "digest"),
        ], ExitStatus(0)

    seen = []
    order = replace(ORDER, checkpoints=None, short=True, seen=seen.append)
    replayed, _ = ran(order, tmp_path, monkeypatch, script)
    assert (replayed.authors, replayed.weights, replayed.lengths) == (authors, "weights", lengths)
    assert replayed.warnings == (["the model is shared"], ["the data are read again"])
    assert [each.step for each in seen] == [1, 6]
