"""The small parts that trials are run with: devices, engines, memory, clocks, audits."""

import json
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import joblib
import psutil
import pytest
from forked_programs import PROGRAM
from scripted_trials import definition
from sweeps import python

from sweeper.db.repository import Claim
from sweeper.errors import UsageError
from sweeper.records.events import AttemptEnded, AttemptStarted, EpochFinished, TrainingStarted
from sweeper.records.results import StudyStatus, TrialStatus
from sweeper.run.auditing import _is_due
from sweeper.run.cluster.driver import _Drive, _Placement, progress_between
from sweeper.run.cluster.engines import check_engine, run_tasks
from sweeper.run.launch.trial_process import ExitStatus, kill_tree
from sweeper.run.protocol.messages import StudySource
from sweeper.run.worker import outcomes
from sweeper.run.worker.outcomes import Death, TrialClock, end_of
from sweeper.support.calling import run_side_by_side

CONFIGURE = """
import json, os
from sweeper.support.tensorflow_start import configure_tensorflow, import_tensorflow
import_tensorflow()
from tensorflow.python.framework import config
enabled = []
for deterministic in (False, True, False):
    configure_tensorflow(threads=2, deterministic=deterministic)
    enabled.append(config.is_op_determinism_enabled())
import tensorflow as tf
tf.zeros(1)
try:
    configure_tensorflow(threads=3, deterministic=False)
except RuntimeError as error:
    refused = str(error)
threads = tf.config.threading
print(json.dumps([threads.get_intra_op_parallelism_threads(),
    threads.get_inter_op_parallelism_threads(), [*enabled, config.is_op_determinism_enabled()], refused]))
"""


def test_threads_and_determinism_hold_and_cannot_be_changed_after_the_first_op(tmp_path):
    ended = python(*PROGRAM, "-c", CONFIGURE, cwd=tmp_path)
    assert ended.code == 0, ended.err
    *threads, enabled, message = json.loads(ended.out)
    assert threads == [2, 2]
    assert enabled == [False, True, True, True], "it is never taken back"
    assert "cannot be modified" in message


def test_an_engine_without_its_package_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"engine 'ray' .*pip install .*\[ray\]'"):
        check_engine("ray")


class Cluster:
    """Threads, on so many machines."""

    def __init__(self, nodes):
        self.nodes = nodes

    def backend(self, tasks, slots):
        return joblib.parallel_config(backend="threading")

    def close(self): ...


def test_a_cluster_scaled_to_no_machines_is_refused_by_name():
    study = SimpleNamespace(repository=None, settings=SimpleNamespace(name="s"))
    prepared = SimpleNamespace(study=study, source=StudySource("target", "s.py"))
    request = SimpleNamespace(engine="dask", listener=print)
    with pytest.raises(UsageError, match="'dask' has no machines now, so 3 workers cannot be"):
        _Drive(prepared, request)._start_hosts(Cluster(0), 3)


def _drive(workers, placements=(), slots=3, asked=None):
    """Return a driver, and the list to which it adds how many workers it places."""
    repository = SimpleNamespace(workers=lambda _: workers, stop_requested=lambda _: asked)
    study = SimpleNamespace(repository=repository, settings=SimpleNamespace(name="s"))
    request = SimpleNamespace(listener=lambda _: None, engine="ray")
    drive = _Drive(SimpleNamespace(study=study), request)
    drive._slots = slots
    drive._placements = list(placements)
    started = []

    def place(count):
        drive._placements.append(_Placement(Future(), count, drive._changes))
        started.append(count)

    drive._start_workers = place
    return drive, started


def _worker(key, slots, *, live=True):
    return SimpleNamespace(key=key, live=live, slots=slots, engine="ray")


@pytest.mark.parametrize(
    ("slots", "asked", "placed"), [(3, None, [2]), (2, None, [1]), (1, None, []), (3, "drain", [])]
)
def test_workers_of_an_earlier_run_that_turn_out_to_be_lost_are_replaced_once(slots, asked, placed):
    drive, started = _drive([_worker("lost", 2, live=False), _worker("there", 1)], (), slots, asked)
    drive._others = {"lost": 2, "there": 1}
    assert [drive._replace_lost(), drive._replace_lost()] == [bool(placed), False]
    assert started == placed


def test_what_an_engine_gives_up_is_placed_again_as_its_workers_go_if_trials_went_on():
    given_up, running = Future(), Future()
    given_up.set_exception(OSError("a node is lost"))
    workers = [_worker("ends", 1), _worker("lost", 1), _worker("another's", 1)]
    placements = [_Placement(given_up, 2, 5), _Placement(running, 1, 5)]
    drive, started = _drive(workers, placements)
    assert not drive._replace_lost(), "no trial has changed since it was placed"
    drive._changes = 6
    assert drive._replace_lost(), "what is watched has changed"
    assert started == []
    workers[0].live = False
    assert [drive._replace_lost(), drive._replace_lost()] == [True, False]
    workers[1].live = False
    assert [drive._replace_lost(), drive._replace_lost()] == [True, False]
    assert started == [1, 1]


def test_what_trials_were_at_a_drivers_start_is_no_progress_of_its_placement():
    stopped = TrialStatus(0, "interrupted", {}, None, 1, 9, {}, attempts=1)
    drive, _ = _drive([], [_Placement(Future(), 2, 0)])
    drive._at_start = {0: stopped}
    statuses = [stopped, stopped, replace(stopped, epoch=2)]
    drive._repository.status = lambda _: StudyStatus("s", 1, trials=(statuses.pop(0),))
    drive._request.options = SimpleNamespace(fail_fast=False)
    changes = []
    while statuses:
        drive._look()
        changes.append(drive._changes)
    assert changes == [0, 0, 1]


def test_a_driver_waits_for_a_machine_where_the_last_one_is_lost():
    drive, started = _drive([_worker("lost", 3, live=False)])
    drive._cluster = Cluster(0)
    drive._others = {"lost": 3}
    said = []
    drive._listener = said.append
    assert [drive._replace_lost(), drive._replace_lost()] == [True, True]
    assert [event.message for event in said] == [
        "3 workers are lost, and the cluster has no machines; waiting for one"
    ]
    drive._cluster = Cluster(1)
    assert [drive._replace_lost(), drive._replace_lost()] == [True, False]
    assert started == [3]


def test_a_single_order_is_run_by_the_cluster_too():
    """One order must not be run in the driver itself, which joblib does where it sees one job."""
    here = threading.current_thread().name
    [ran] = run_tasks(Cluster(1), lambda _spec: threading.current_thread().name, ["order"], 1)
    assert ran != here


def test_a_driver_reports_what_differs_between_two_looks_at_a_trial():
    def look(state, epoch=0, attempts=1, value=None):
        params = {"rate": 0.5} if epoch or state != "running" else {}
        return TrialStatus(3, state, params, value, epoch, 9, {"loss": 1.0}, attempts=attempts)

    def kinds(*pair):
        return [type(event) for event in progress_between(*pair, 2.0)]

    started = look("running")
    training = look("running", 4)
    ended = look("complete", 9, value=0.5)
    assert kinds(None, started) == [AttemptStarted]
    assert kinds(started, training) == [TrainingStarted, EpochFinished]
    assert kinds(training, training) == []
    assert list(progress_between(training, ended, 2.0)) == [
        EpochFinished(3, 8, 0, {"loss": 1.0}, 0.4),
        AttemptEnded(3, 1, "complete", 0.5),
    ]
    assert kinds(None, ended) == [AttemptStarted, TrainingStarted, EpochFinished, AttemptEnded]
    lost = look("interrupted", 4)
    assert kinds(training, lost) == [AttemptEnded]
    assert kinds(lost, look("running", 4, attempts=2)) == [AttemptStarted, TrainingStarted]


def test_the_first_error_of_work_side_by_side_stops_the_rest_and_is_raised():
    stopping = threading.Event()

    def fail():
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        run_side_by_side([fail, lambda: stopping.wait(20)], 2, stopping)
    assert stopping.is_set()


def test_kills_for_lack_of_memory_are_added_up(tmp_path, monkeypatch):
    (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\noom_kill_other 40\n")
    (tmp_path / "events").write_text("low 0\noom 9\noom_kill 2\n")
    counters = tuple((tmp_path / n, "oom_kill") for n in ("vmstat", "events", "missing"))
    monkeypatch.setattr(outcomes, "_COUNTERS", counters)
    assert outcomes.out_of_memory_kills() == 5
    monkeypatch.setattr(outcomes, "_COUNTERS", counters[2:])
    assert outcomes.out_of_memory_kills() == 0


def test_time_in_which_the_worker_stood_still_does_not_count():
    moments = iter([0.0, 1.0, 2.0, 3602.0, 3603.0, 3603.0])
    clock = TrialClock(10.0, clock=lambda: next(moments))
    for _ in range(4):
        assert clock.overran(0.0) is None
    assert clock.overran(6.0) == pytest.approx(11.0)
    assert TrialClock(None).overran(1e9) is None


def test_a_kill_for_lack_of_memory_is_distinguished_from_another_by_what_the_kernel_counted():
    settings = definition(retries={"memory": 0, "crash": 1}).settings()
    claim = Claim("scripted", 0, 1, token=1, seed=0, optuna_trial_id=1)
    log = Path("log.txt")
    killed = ExitStatus(-9)
    ran_out = end_of(claim, settings, None, Death(killed, ran_out=True), log)
    other = end_of(claim, settings, None, Death(killed), log)
    assert (ran_out.fault, ran_out.final) == ("memory", True)
    assert (other.fault, other.final) == ("crash", False)
    assert "memory ran out" in (ran_out.error or "")
    assert "not for lack of memory" in (other.error or "")


def test_what_runs_under_another_user_keeps_nothing_else_alive():
    """A program with another user's rights is not ours to stop; the trial around it is."""
    killed = []

    class Member:
        def __init__(self, pid):
            self.pid = pid

        def children(self, recursive):
            return [Member(2), Member(3)] * recursive

        def suspend(self):
            if self.pid == 2:
                raise psutil.AccessDenied(self.pid)

        def kill(self):
            self.suspend()
            killed.append(self.pid)

    kill_tree(Member(1))
    assert killed == [1, 3]


# Which trials are audited: the first, and later ones as they are drawn, within 5% of the time

TRIALS = range(1, 4001)
JOINED = datetime(2026, 1, 1, tzinfo=UTC)


def is_due(number, audit, attempt=1.0, *, first="complete", ended=1, seed=0):
    """Return whether a trial is audited whose study's audits and attempts took so many seconds on average.

    The first trial's last attempt ended ``ended`` seconds after the worker joined.
    """
    attempts = [SimpleNamespace(ended_at=JOINED + timedelta(seconds=ended))]
    repository = SimpleNamespace(
        audit_costs=lambda _study: (audit, attempt),
        trial=lambda _study, _number: SimpleNamespace(state=first, attempts=attempts),
        workers=lambda _study: [
            SimpleNamespace(key="earlier", joined_at=JOINED - timedelta(hours=1)),
            SimpleNamespace(key="own", joined_at=JOINED),
        ],
    )
    settings = SimpleNamespace(name="digits", seed=seed)
    study = SimpleNamespace(repository_with_short_timeout=repository, settings=settings)
    row = SimpleNamespace(key="own")
    return _is_due(SimpleNamespace(study=study, worker_row=row, ask=lambda call: call()), number)


@pytest.mark.parametrize(("audit", "attempt"), [(3.0, 3.0), (2.0, 10.0), (5.0, 1.0)])
def test_audits_of_drawn_trials_take_a_twentieth_of_the_time(audit, attempt):
    drawn, repeated, other = (
        [number for number in TRIALS if is_due(number, audit, attempt, seed=seed)]
        for seed in (0, 0, 1)
    )
    assert len(drawn) * audit / (len(TRIALS) * attempt) == pytest.approx(0.05, abs=0.015)
    assert drawn == repeated
    assert drawn != other, "another study draws other trials"


def test_the_first_trial_is_always_audited_whatever_it_costs_and_every_one_where_it_is_cheap():
    assert is_due(0, 1e9)
    assert not any(is_due(number, 1e9) for number in TRIALS), "the control"
    assert all(is_due(number, 0.01) for number in TRIALS[:100])


@pytest.mark.parametrize(
    ("first", "ended", "due"),
    [
        *(("failed", 1, True), ("running", -1, False)),
        # Under this worker it is being audited now; under an earlier one the audit was stopped.
        *(("complete", 1, False), ("complete", -1, True)),
    ],
)
def test_the_next_trial_stands_in_for_a_first_one_without_an_audit(first, ended, due):
    assert is_due(3, None, first=first, ended=ended) is due
