"""A database server that is killed under running workers, and comes back: at once, or much later.

The server is the test's own, and recovers from its log as after a crash. The trials are
`fake_trial`s, as in `test_worker_faults`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from databases import POSTGRES
from fake_workers import FakeWorker, faults_of, new_study, undisturbed_results

from sweeper.db.database import Database
from sweeper.db.repository import Repository

TRIALS = {"trials": 6, "epochs": 5}
LEASE = 0.8
AWAY = 540.0
"""Seconds: most of the ten minutes that trials go on without their database."""


class OwnServer:
    """A server in a directory of its own, on a free port of 127.0.0.1."""

    def __init__(self, programs, directory):
        self._programs = programs
        self._directory = directory
        # PostgreSQL refuses to run as root; Debian's package brings this user.
        self._as = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(directory, "postgres")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync")
        self.start()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/postgres"

    def start(self):
        """Start it, and wait until it answers."""
        options = f"-h 127.0.0.1 -p {self._port} -k {self._directory} -F"
        self._run("pg_ctl", "--wait", f"--log={self._directory / 'log'}", "start", "-o", options)

    def kill(self):
        """End it without a word to anybody: what it does next is recover."""
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def _run(self, program, *arguments):
        subprocess.run(
            [str(self._programs / program), f"--pgdata={self._directory / 'data'}", *arguments],
            check=True,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **self._as,
        )


@pytest.fixture(scope="module")
def own_server():
    """A server with a database of sweeper's; skipped where PostgreSQL is not tested at all."""
    if not os.environ.get(POSTGRES):
        pytest.skip(f"{POSTGRES} is unset; set it to a server's URL to run these on PostgreSQL")
    on_path = shutil.which("initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(debian, key=lambda path: float(path.parts[-3]), default=None)
    if not (on_path or newest):
        without = pytest.fail if os.environ.get("CI") else pytest.skip
        without("install a PostgreSQL server to have one killed and started again")
    programs = Path(on_path or newest).parent
    directory = Path(tempfile.mkdtemp(prefix="sweeper-postgres-"))
    server = OwnServer(programs, directory)
    try:
        with Database.open(server.url, create=True) as database:
            yield server, Repository(database)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            server.kill()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def undisturbed(own_server, tmp_path_factory):
    return undisturbed_results(own_server[1], tmp_path_factory.mktemp("undisturbed"), **TRIALS)


@pytest.mark.whole
def test_a_server_that_crashes_and_starts_again_costs_no_result(own_server, undisturbed, tmp_path):
    """Away for longer than a lease lasts: nobody could renew, so nobody loses anything."""
    server, repository = own_server
    options = new_study(repository, tmp_path, "restarted", **TRIALS)
    options = replace(options, pace=0.15, first_pace=0.4, lease_seconds=LEASE)
    event_counts = []
    with ExitStack() as stack:
        workers = [stack.enter_context(FakeWorker(options)) for _ in range(2)]
        for seconds_away in (2 * LEASE, 0):
            for worker in workers:
                worker.wait_for("CheckpointKept")
            server.kill()
            for worker in workers:
                worker.wait_for("Notice", "the database is unreachable since")
            counts = [len(worker.events) for worker in workers]
            time.sleep(seconds_away)
            event_counts.append([len(w.events) - b for w, b in zip(workers, counts, strict=True)])
            server.start()
            for worker in workers:
                worker.wait_for("Notice", "the database is reachable again after")
        assert [worker.end() for worker in workers] == [0, 0]
        away = [n for w in workers for n in w.notices if "the database is unreachable" in n]
    trials = repository.trials(options.study)
    assert faults_of(trials, undisturbed) == []
    assert {len(trial.attempts) for trial in trials} == {1}
    assert min(event_counts[0]) >= 2
    assert len(away) == 4


@pytest.mark.soak
def test_nine_minutes_without_the_server_stop_no_training_and_lose_nothing(
    own_server, undisturbed, tmp_path
):
    server, repository = own_server
    options = replace(new_study(repository, tmp_path, "nine-minutes", **TRIALS), first_pace=70.0)
    with FakeWorker(options) as worker:
        worker.wait_for("AttemptStarted")
        time.sleep(1.0)
        server.kill()
        count = len(worker.events)
        time.sleep(AWAY)
        new_events = len(worker.events) - count
        server.start()
        worker.wait_for("Notice", "the database is reachable again after")
        assert worker.end() == 0
    trials = repository.trials(options.study)
    assert faults_of(trials, undisturbed) == []
    assert {len(trial.attempts) for trial in trials} == {1}
    assert new_events >= TRIALS["epochs"]
