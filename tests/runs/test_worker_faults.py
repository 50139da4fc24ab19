"""What befalls workers on PostgreSQL, and what each trial is afterwards: one result, the same one."""

import contextlib
import os
import random
import re
import signal
import time
from dataclasses import replace

import pytest
from databases import postgresql_database
from fake_workers import FakeWorker, faults_of, new_study, undisturbed_results
from waiting import live, until

from sweeper.db.database import Database
from sweeper.db.repository import Repository

TRIALS = {"trials": 6, "epochs": 5}
SHORT = 0.8
"""A lease's seconds where a worker is to lose one."""


@pytest.fixture(scope="module")
def server():
    with postgresql_database() as database:
        yield database


@pytest.fixture(scope="module")
def repository(server):
    with Database.open(server.url, create=False) as database:
        yield Repository(database)


@pytest.fixture(scope="module")
def undisturbed(repository, tmp_path_factory):
    return undisturbed_results(repository, tmp_path_factory.mktemp("undisturbed"), **TRIALS)


@pytest.fixture
def options(repository, tmp_path, request):
    """A worker for a study of this test's own."""
    study = re.sub(r"\W+", "-", request.node.name)[:80]
    return replace(new_study(repository, tmp_path, study, **TRIALS), slots=2)


def test_all_processes_of_a_host_killed_and_its_lease_waited_for(repository, options, undisturbed):
    """Another host has only the lease to go by: nobody can look for the process."""
    elsewhere = replace(options, host="a-machine-far-away", lease_seconds=SHORT, pace=0.1)
    with FakeWorker(elsewhere) as victim:
        victim.wait_for("CheckpointKept")
        assert until(lambda: repository.status(options.study).running == 2)
        victim.kill()
        assert repository.status(options.study).running == 2
        with FakeWorker(replace(options, lease_seconds=SHORT)) as other:
            assert other.end() == 0
    trials = repository.trials(options.study)
    assert faults_of(trials, undisturbed) == []
    assert [a.outcome for t in trials for a in t.attempts].count("lost") == 2


def test_a_worker_stopped_past_its_lease_ends_its_trial_and_goes_on_with_others(
    repository, options, undisturbed
):
    options = replace(options, slots=1, lease_seconds=SHORT, pace=0.1)
    slow = replace(options, first_pace=1.0)
    with FakeWorker(options) as other, FakeWorker(slow) as paused:
        number = paused.wait_for("CheckpointKept")["trial"]
        pid = repository.trial(options.study, number).attempts[0].pid
        paused.send_signal(signal.SIGSTOP)
        assert until(lambda: len(repository.trial(options.study, number).attempts) == 2)
        assert pid is not None
        assert live(pid), "the trial's process was not stopped, and trains on"
        paused.send_signal(signal.SIGCONT)
        paused.wait_for("Notice", f"another worker has taken trial {number}")
        assert not live(pid)
        assert (other.end(), paused.end()) == (0, 0)
        going_on = [f for kind, f in paused.events if kind == "AttemptStarted"]
    trials = repository.trials(options.study)
    assert faults_of(trials, undisturbed) == []
    assert trials[number].attempts[0].outcome == "lost"
    assert len(going_on) > 1


def test_a_server_away_for_too_long_has_trials_checkpoint_and_stop(
    server, repository, options, undisturbed
):
    with FakeWorker(replace(options, pace=0.5, longest_absence=0.5)) as worker:
        worker.wait_for("CheckpointKept")
        with server.shut():
            assert worker.end() == 1
        assert any("was unreachable for" in notice for notice in worker.notices), worker.notices
    assert repository.status(options.study).running == 0
    with FakeWorker(options) as second:
        assert second.end() == 0
    assert faults_of(repository.trials(options.study), undisturbed) == []


def test_the_comparison_notices_each_fault(repository, undisturbed):
    trials = repository.trials("undisturbed")
    assert faults_of(trials, undisturbed) == []
    first = trials[0]
    twice = replace(first, attempts=(*first.attempts, replace(first.attempts[0], number=2)))
    for broken in (
        trials[1:],
        (replace(first, attempts=()), *trials[1:]),
        (twice, *trials[1:]),
        (replace(first, digest="0" * 32), *trials[1:]),
        (replace(first, value=0.5), *trials[1:]),
        (replace(first, epochs=first.epochs[:-1]), *trials[1:]),
    ):
        assert faults_of(broken, undisturbed) != []


@pytest.mark.chaos
def test_two_minutes_of_every_fault_at_once_costs_no_result(server, repository, tmp_path):
    """Three hosts, one of them killed, stopped or cut off every half second, at random."""
    arguments = {"trials": 120, "epochs": 8}
    chance = random.Random(3)
    plain = tmp_path / "plain"
    undisturbed = undisturbed_results(repository, plain, "chaos-undisturbed", **arguments)
    disturbed = new_study(repository, tmp_path / "chaos", "chaos", **arguments)
    disturbed = replace(disturbed, slots=2, pace=0.2, lease_seconds=SHORT)
    hosts = [replace(disturbed, host=f"host-{i}") for i in range(3)]
    workers = [FakeWorker(host) for host in hosts]
    counts = {"killed": 0, "stopped": 0, "ended": 0, "shut": 0}
    try:
        deadline = time.monotonic() + 120
        while repository.status("chaos").complete < arguments["trials"]:
            calm = time.monotonic() > deadline
            time.sleep(0.5)
            index = chance.randrange(3)
            if not workers[index].process.is_alive():
                workers[index].__exit__()
                workers[index] = FakeWorker(hosts[index])
                continue
            fault = "none" if calm else chance.choice(list(counts))
            if fault == "killed":
                workers[index].kill()
            elif fault == "stopped":
                workers[index].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.1, 3 * SHORT))
                workers[index].send_signal(signal.SIGCONT)
            elif fault == "ended":
                server.end_connections()
            elif fault == "shut":
                with server.shut():
                    time.sleep(chance.uniform(0, 2 * SHORT))
            if fault in counts:
                counts[fault] += 1
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)
            worker.__exit__()
    assert faults_of(repository.trials("chaos"), undisturbed) == []
