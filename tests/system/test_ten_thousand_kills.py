"""Sweeps under every kind of fault at every kind of moment, in pieces that add to one tally.

A piece lasts as many minutes as ``SWEEPER_TEST_KILL_MINUTES`` says, and adds to the file that
``SWEEPER_TEST_KILL_TALLY`` names: ``python tests/kill_tally.py --minutes 20`` runs one, and prints the table.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import textwrap
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from databases import POSTGRES, postgresql_database
from hosts import clock, has_clocks
from interruptions import KILL_ALL
from object_faults import BUCKET, s3_environment
from study_files import StudyText
from sweeps import LIMIT, RunningCommand, command, database_url, differing, results_of, sweep
from waiting import until

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import StorageError

MINUTES = float(os.environ.get("SWEEPER_TEST_KILL_MINUTES", "10"))
TALLY = os.environ.get("SWEEPER_TEST_KILL_TALLY", "")

HEAD = KILL_ALL + textwrap.dedent("""
import errno
import threading
import time
from sweeper import Halving
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.remote_objects import ObjectStore

# The file that counts the trials which died by themselves, if they are to.
DEATHS = os.environ.get("SWEEPER_TEST_DEATHS")

def die():
    time.sleep(time.monotonic_ns() % 1_500 / 1_000)
    with open(DEATHS, "ab") as deaths:
        deaths.write(b"x")
    os.kill(os.getpid(), signal.SIGKILL)

class Mortal(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if DEATHS:
            threading.Thread(target=die, daemon=True).start()

# "rename:3:SIGTERM" has that happen inside the third rename of a trial's commits.
FAULT = os.environ.get("SWEEPER_TEST_FAULT")

def fault_inside(owner, operation, count, fault):
    original = getattr(owner, operation)
    done = 0

    def failing(self, *arguments, **named):
        nonlocal done
        done += 1
        if done == count:
            if fault == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if fault == "SIGKILL":
                kill_all()
            os.kill(int(sys.orig_argv[-2]), getattr(signal, fault))
        return original(self, *arguments, **named)

    setattr(owner, operation, failing)

if FAULT:
    operation, count, fault = FAULT.split(":")
    fault_inside(
        ObjectStore if operation == "upload" else FileOperations, operation, int(count), fault
    )
""")

COMMIT = ("make_directory", "create", "write", "fsync", "fsync_directory", "rename")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


@dataclass(frozen=True)
class Kind:
    """A kind of sweep, the moment that it is for, and the arguments of its study."""

    moment: str
    arguments: str
    confirms: bool = False
    uploads: bool = False

    @property
    def study(self):
        policy = 'audit="off", retries=dict(crash=10**6)'
        arguments = f'objective="val_loss", seed=5, {policy}, {self.arguments}'
        return StudyText(head=HEAD, callbacks="Mortal()", arguments=arguments)


KINDS = (
    Kind("commit", 'epochs=6, trials=10, sampler="random", checkpoint_every=Every(steps=7)'),
    Kind("promotion", "epochs=9, trials=12, concurrency=2, budget=Halving(factor=3)"),
    Kind("confirmation", "epochs=4, trials=6, concurrency=2, repeats=2", confirms=True),
    Kind(
        "upload",
        'epochs=3, trials=6, sampler="random", checkpoint_every=Every(steps=7)',
        uploads=True,
    ),
)
CONFIRM = ("confirm", "small", "--best", 2, "--repeats", 2)


@dataclass
class Tally:
    """What was hit so far, over all pieces: counts by database, moment and fault, and what was wrong."""

    hits: Counter = field(default_factory=Counter)
    wrong: Counter = field(default_factory=Counter)
    sweeps: int = 0
    trials: int = 0

    @classmethod
    def read(cls, path):
        if not path or not Path(path).exists():
            return cls()
        stored = json.loads(Path(path).read_text())
        hits, wrong = Counter(stored.pop("hits")), Counter(stored.pop("wrong"))
        return cls(hits, wrong, **stored)

    def write(self, path):
        if path:
            temporary = Path(f"{path}.new")
            temporary.write_text(json.dumps(vars(self), indent=1, sort_keys=True))
            temporary.replace(path)

    def table(self):
        """Return the table of what was hit where."""
        faults = sorted({key.split(" ")[2] for key in self.hits})
        rows = [("", *faults, "all")]
        places = sorted({key.rsplit(" ", 1)[0] for key in self.hits})
        for place in places:
            counts = [self.hits[f"{place} {fault}"] for fault in faults]
            rows.append((place, *map(str, counts), str(sum(counts))))
        totals = [sum(n for k, n in self.hits.items() if k.endswith(f" {f}")) for f in faults]
        rows.append(("all", *map(str, totals), str(self.hits.total())))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        wrong = ", ".join(f"{self.wrong[each]} {each}" for each in ("lost", "doubled", "changed"))
        return "\n".join([*lines, f"{self.sweeps} sweeps, {self.trials} trials: {wrong}"])


@dataclass
class Campaign:
    """One sweep under faults. ``storage`` is its database's URL, and ``server`` PostgreSQL's or None."""

    kind: Kind
    directory: Path
    storage: str
    server: object
    chance: random.Random
    tally: Tally
    environment: dict

    @property
    def database(self):
        return "sqlite" if self.server is None else "postgresql"

    def hit(self, moment, fault):
        self.tally.hits[f"{self.database} {moment} {fault}"] += 1

    def run(self):
        """Run the sweep, and its confirmation, under faults until nothing is left."""
        remote = (
            ("--checkpoints", f"s3://{BUCKET}/{self.directory.name}") if self.kind.uploads else ()
        )
        self._flags = ("--storage", self.storage, "--workers", 2, *remote, "-v")
        self._migrated(("run", "small.py", *self._flags))
        self._until_over("small", ("run", "small.py"))
        if self.kind.confirms:
            self._until_over("small~confirm", CONFIRM)

    def trials(self, study):
        with Database.open(self.storage, create=False) as database:
            return Repository(database).trials(study)

    def _until_over(self, study, first):
        words = first
        moment = self.kind.moment
        if moment == "confirmation" and study == "small":
            moment = "run"
        for _ in range(200):
            code = self._with_deaths((*words, *self._flags), moment)
            if code == 0:
                return
            # A study that nobody has stored yet is run again.
            with (
                contextlib.suppress(Exception),
                Database.open(self.storage, create=False) as database,
            ):
                if study in Repository(database).study_names():
                    words = ("resume", study)
        last = command(*words, *self._flags, cwd=self.directory, env=self.environment)
        assert last.code == 0, last.err

    def _migrated(self, words):
        """Kill the command while it creates the tables, with luck."""
        with RunningCommand(*words, cwd=self.directory, env=self.environment) as run:
            run.wait_for("importing")
            until(lambda: self._is_opened() or run.process.poll() is not None, LIMIT)
            time.sleep(self.chance.uniform(0, 0.3))
            whole = self._is_whole()
            fault = self.chance.choice(SIGNALS)
            if run.process.poll() is None:
                self.hit("run" if whole else "migration", fault)
            self._signal(run, fault)

    def _is_opened(self):
        """Return whether the command has opened the database, which has no tables before."""
        if self.server is None:
            return Path(self.storage.removeprefix("sqlite:///")).exists()
        with self.server.engine.connect() as connection:
            using = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self.server.name}'"
            return connection.exec_driver_sql(using).scalar() > 0

    def _is_whole(self):
        """Return whether all tables are there."""
        try:
            Database.open(self.storage, create=False, patience=0.0).close()
        except StorageError:
            return False
        return True

    def _with_deaths(self, words, moment):
        """Run the command under one fault, while its trials die, too, in half of the cases; return its exit code."""
        deaths = self.directory / "deaths"
        deaths.touch()
        dead = deaths.stat().st_size
        self._given = {"SWEEPER_TEST_DEATHS": str(deaths)} if self.chance.random() < 0.5 else {}
        code = self._under_a_fault(words, moment)
        self.tally.hits[f"{self.database} {moment} trial"] += deaths.stat().st_size - dead
        return code

    def _under_a_fault(self, words, moment):
        inside = moment in ("commit", "upload") and self.chance.random() < 0.5
        if inside:
            fault = self.chance.choice((*SIGNALS, "full"))
            operation = "upload" if moment == "upload" else self.chance.choice(COMMIT)
            count = self.chance.randint(1, 12)
            env = {
                **self.environment,
                **self._given,
                "SWEEPER_TEST_FAULT": f"{operation}:{count}:{fault}",
            }
            with RunningCommand(*words, cwd=self.directory, env=env) as run:
                code = run.end()
            if code:
                self.hit(moment, fault)
            return code
        fault = self.chance.choice((*SIGNALS, *SIGNALS, *SIGNALS, "server", "server", "clock"))
        before = ()
        if fault == "clock":
            given = clock(self.directory, "-1h")
            before = ("env", *(f"{name}={value}" for name, value in given.items()))
        env = {**self.environment, **self._given}
        with RunningCommand(*words, cwd=self.directory, env=env, before=before) as run:
            wanted = "rung of bracket" if moment == "promotion" else "epoch"
            for _ in range(self.chance.randint(1, 4)):
                if run.wait_for(wanted) is None:
                    break
            time.sleep(self.chance.uniform(0, 0.1))
            where = "run" if moment in ("commit", "upload") else moment
            if run.process.poll() is None:
                self.hit(where, fault)
                if fault == "server":
                    with self._stopped():
                        time.sleep(self.chance.uniform(0.2, 2))
                    if run.wait_for("epoch") is not None:
                        self._signal(run, "SIGKILL")
                        self.hit(where, "SIGKILL")
                else:
                    self._signal(run, "SIGKILL" if fault == "clock" else fault)
            return run.end()

    def _stopped(self):
        return self._locked() if self.server is None else self.server.shut()

    @contextlib.contextmanager
    def _locked(self):
        """Hold SQLite's file, as a backup or a slow disk does."""
        file = self.storage.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as held:
            held.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                held.execute("ROLLBACK")

    @staticmethod
    def _signal(run, fault):
        if fault == "SIGKILL":
            run.kill_group()
        else:
            run.signal(getattr(signal, fault))
            run.end()


def judged(tally, expected, trials):
    """Add what is wrong with the trials of one study to the tally."""
    results = results_of(trials)
    outcomes = [[a.outcome for a in trial.attempts] for trial in trials]
    ended = [sum(each.count(o) for o in ("complete", "pruned", "failed")) for each in outcomes]
    tally.wrong["lost"] += len(expected.keys() - results.keys())
    tally.wrong["lost"] += sum(trial.state not in ("complete", "pruned") for trial in trials)
    tally.wrong["doubled"] += sum(count > 1 for count in ended)
    tally.wrong["doubled"] += len(results.keys() - expected.keys())
    tally.wrong["changed"] += len(differing(expected, results))
    tally.trials += len(trials)


def undisturbed(kind, directory):
    """Return the results of the kind's studies, of which nothing is killed."""
    file = kind.study.write(directory / "small.py")
    found = {
        "small": results_of(sweep(file, directory / "runs", workers=1, isolation="inline").trials)
    }
    if kind.confirms:
        flags = (
            "--workers",
            1,
            "--runs-dir",
            "runs",
            "--storage",
            database_url(directory / "runs"),
        )
        assert command(*CONFIRM, *flags, cwd=directory).code == 0
        with Database.open(database_url(directory / "runs"), create=False) as database:
            found["small~confirm"] = results_of(Repository(database).trials("small~confirm"))
    return found


@contextlib.contextmanager
def a_database(directory, *, server):
    """Give an empty place for a database: its URL, and PostgreSQL's server or None."""
    if not server:
        yield f"sqlite:///{directory}/sweeper.db", None
        return
    with postgresql_database() as made:
        made.end_connections()
        made.run(f"DROP DATABASE {made.name} WITH (FORCE)")
        made.run(f"CREATE DATABASE {made.name}")
        yield made.url, made


@pytest.mark.soak  # by default system/test_kills.py
def test_ten_thousand_kills_in_pieces_lose_double_and_change_nothing(tmp_path, s3_url):
    assert has_clocks(), "clocks are set back by libfaketime; install it, and a compiler"
    tally, deadline = Tally.read(TALLY), time.monotonic() + 60 * MINUTES
    expected, piece = {}, time.time_ns()
    databases = (False, True) if os.environ.get(POSTGRES) else (False,)
    number = 0
    while time.monotonic() < deadline:
        kind = KINDS[(number // len(databases)) % len(KINDS)]
        directory = tmp_path / f"{piece}-{number}"
        directory.mkdir()
        if kind not in expected:
            (directory / "whole").mkdir()
            expected[kind] = undisturbed(kind, directory / "whole")
        kind.study.write(directory / "small.py")
        with a_database(directory, server=databases[number % len(databases)]) as (storage, server):
            chance = random.Random(f"{piece} {number}")
            environment = s3_environment(s3_url) if kind.uploads else {}
            campaign = Campaign(kind, directory, storage, server, chance, tally, environment)
            campaign.run()
            before = tally.wrong.total()
            for study, results in expected[kind].items():
                judged(tally, results, campaign.trials(study))
        tally.sweeps += 1
        tally.write(TALLY)
        assert tally.wrong.total() == before, f"{directory}\n{tally.table()}"
        shutil.rmtree(directory)
        number += 1
    print(tally.table())
    assert number


def test_the_tally_names_a_trial_that_was_lost_doubled_or_changed(tmp_path):
    """The control: what ends in the table differs where something is wrong."""
    file = StudyText().write(tmp_path / "small.py")
    trials = sweep(file, tmp_path / "runs", workers=1, isolation="inline").trials
    expected, tally = results_of(trials), Tally()
    judged(tally, expected, trials)
    assert tally.wrong.total() == 0
    judged(tally, expected, trials[:1])
    assert tally.wrong["lost"] == 1
    judged(tally, {0: expected[0], 1: expected[0]}, trials)
    assert tally.wrong["changed"] == 2
    judged(tally, {0: expected[0]}, trials)
    assert tally.wrong["doubled"] == 1
