"""A database server that is killed under running workers, and comes back: at once, or much later.

The server is the test's own, and recovers from its log as after a crash. The trials are
`fake_trial`s, as in `test_worker_faults`.
"""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from databases import POSTGRES, Server
from fake_workers import FakeWorker, WorkerOptions, create, faults_of, settings_of
from sweeps import results_of

from sweeper.db.database import Database
from sweeper.db.repository import Repository

TRIALS, EPOCHS = 6, 5
LEASE = 0.8
AWAY = 540.0
"""Seconds: most of the ten minutes that trials go on without their database."""

pytestmark = pytest.mark.usefixtures("real_servers")


DEBIAN = Path("/usr/lib/postgresql")


class OwnServer:
    """A server in a directory of its own, on a free port of 127.0.0.1."""

    def __init__(self, binaries, directory):
        self._binaries = binaries
        self._data = directory / "data"
        # PostgreSQL refuses to run as root; Debian's package brings this user.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(directory, self._user)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._running = False
        self._run("initdb", "--auth=trust", "--username=postgres", "--no-sync")
        self.start()
        url = sa.URL.create(
            "postgresql+psycopg", "postgres", host="127.0.0.1", port=self._port, database="postgres"
        )
        self.engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    def start(self):
        """Start it, and wait until it answers."""
        options = f"-h 127.0.0.1 -p {self._port} -k {self._data.parent} -F"
        self._run("pg_ctl", "--wait", f"--log={self._data.parent / 'log'}", "start", "-o", options)
        self._running = True

    def kill(self):
        """End it without a word to anybody: what it does next is recover."""
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")
        self._running = False

    def close(self):
        self.engine.dispose()
        if self._running:
            self.kill()

    def _run(self, program, *arguments):
        subprocess.run(
            [str(self._binaries / program), f"--pgdata={self._data}", *arguments],
            check=True,
            user=None if self._user is None else pwd.getpwnam(self._user).pw_uid,
            group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            cwd=self._data.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def own_server():
    """Make a server with a database of sweeper's; skip where PostgreSQL is not tested at all."""
    if not os.environ.get(POSTGRES):
        pytest.skip(f"{POSTGRES} is unset; set it to a server's URL to run these on PostgreSQL")
    binaries = _binaries()
    if binaries is None:
        msg = (
            f"no initdb on the path and none in {DEBIAN}/*/bin; install a PostgreSQL server to "
            "have one killed and started again"
        )
        if os.environ.get("CI"):
            pytest.fail(msg)
        pytest.skip(msg)
    directory = Path(tempfile.mkdtemp(prefix="sweeper-postgres-"))
    own = OwnServer(binaries, directory)
    try:
        server = Server(own.engine, "sweeper")
        server.run("CREATE DATABASE sweeper")
        Database.open(server.url, create=True).close()
        yield own, server
    finally:
        own.close()
        shutil.rmtree(directory)


def _binaries():
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = [path.parent for path in DEBIAN.glob("*/bin/initdb")]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


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


@pytest.mark.whole
def test_a_server_that_crashes_and_starts_again_costs_no_result(own, undisturbed, tmp_path):
    """Away for longer than a lease lasts: nobody could renew, so nobody loses anything."""
    server, url = own
    options = replace(run(url, tmp_path, "restarted"), pace=0.15, slots=1)
    options = replace(options, first_pace=0.4, lease_seconds=LEASE)
    trained = []
    with ExitStack() as stack:
        workers = [stack.enter_context(FakeWorker(options)) for _ in range(2)]
        for seconds_away in (2 * LEASE, 0):
            for worker in workers:
                worker.wait_for("CheckpointKept")
            server.kill()
            for worker in workers:
                worker.wait_for("Notice", "the database is unreachable since")
            before = [len(worker.events) for worker in workers]
            time.sleep(seconds_away)
            trained.append([len(w.events) - b for w, b in zip(workers, before, strict=True)])
            server.start()
            for worker in workers:
                worker.wait_for("Notice", "the database is reachable again after")
        assert [worker.end() for worker in workers] == [0, 0]
        away = [n for w in workers for n in w.notices if "the database is unreachable" in n]
    trials = trials_of(options)
    assert faults_of(trials, undisturbed) == []
    assert {len(trial.attempts) for trial in trials} == {1}
    assert min(trained[0]) >= 2
    assert len(away) == 4


@pytest.mark.soak
def test_nine_minutes_without_the_server_stop_no_training_and_lose_nothing(
    own, undisturbed, tmp_path
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
