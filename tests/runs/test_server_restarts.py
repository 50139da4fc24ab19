"""A database server that is killed under running workers, and comes back: at once, or much later.

The server is the test's own, and recovers from its log as after a crash. The trials are
`fake_trial`s, as in `test_worker_faults`.
"""

import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
from fake_workers import (
    FakeWorker,
    WorkerOptions,
    create,
    faults_of,
    results_of,
    settings_of,
)
from own_server import own_server

from sweeper.db.database import Database
from sweeper.db.repository import Repository

TRIALS, EPOCHS = 6, 5
RESTARTS = 2
AWAY = 540.0
"""Seconds: most of the ten minutes that trials go on without their database."""

pytestmark = pytest.mark.usefixtures("real_servers")


@pytest.fixture(scope="module")
def own():
    with own_server() as (server, database):
        yield server, database.url


def run(url, runs, study):
    with Database.open(url, create=False) as database:
        create(Repository(database), settings_of(study, trials=TRIALS, epochs=EPOCHS))
    return WorkerOptions(url, str(runs), study, slots=2)


def trials_of(options):
    with Database.open(options.url, create=False) as database:
        return Repository(database).trials(options.study)


@pytest.fixture(scope="module")
def undisturbed(own, tmp_path_factory):
    options = run(own[1], tmp_path_factory.mktemp("undisturbed"), "undisturbed")
    with FakeWorker(replace(options, slots=TRIALS)) as worker:
        assert worker.end() == 0
    return results_of(trials_of(options))


def test_a_server_that_crashes_and_starts_again_costs_no_result(own, undisturbed, tmp_path, capsys):
    server, url = own
    options = replace(run(url, tmp_path, "restarted"), pace=0.15, slots=1)
    with ExitStack() as stack:
        workers = [stack.enter_context(FakeWorker(options)) for _ in range(2)]
        for _ in range(RESTARTS):
            for worker in workers:
                worker.wait_for("CheckpointKept")
            server.kill()
            workers[0].wait_for("Notice", "the database is unreachable since")
            server.start()
            workers[0].wait_for("Notice", "the database is reachable again after")
        assert [worker.end() for worker in workers] == [0, 0]
        away = [n for w in workers for n in w.notices if "the database is unreachable" in n]
    trials = trials_of(options)
    assert faults_of(trials, undisturbed) == []
    assert {len(trial.attempts) for trial in trials} == {1}
    assert len(away) >= RESTARTS
    with capsys.disabled():
        print(
            f"\n    server killed and started {RESTARTS} times: {len(away)} times noticed",
            file=sys.stderr,
        )


@pytest.mark.soak
def test_nine_minutes_without_the_server_stop_no_training_and_lose_nothing(
    own, undisturbed, tmp_path, capsys
):
    server, url = own
    options = replace(run(url, tmp_path, "nine-minutes"), pace=0.02, first_pace=70.0, slots=1)
    with FakeWorker(options) as worker:
        worker.wait_for("AttemptStarted")
        time.sleep(1.0)
        server.kill()
        before = len(worker.events)
        time.sleep(AWAY)
        trained = len(worker.events) - before
        server.start()
        worker.wait_for("Notice", "the database is reachable again after")
        assert worker.end() == 0
    trials = trials_of(options)
    assert faults_of(trials, undisturbed) == []
    assert {len(trial.attempts) for trial in trials} == {1}
    assert trained >= EPOCHS
    with capsys.disabled():
        print(
            f"\n    server away for {AWAY:.0f} s: {trained} events of training meanwhile",
            file=sys.stderr,
        )
