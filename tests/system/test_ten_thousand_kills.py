"""Sweeps under every kind of fault at every kind of moment, in pieces that add to one tally.

A piece lasts as many minutes as ``SWEEPER_TEST_KILL_MINUTES`` says, and adds to the file that
``SWEEPER_TEST_KILL_TALLY`` names: ``python tests/kill_tally.py --minutes 20`` runs one, and prints the table.
"""

import contextlib
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
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
from study_files import TWO_STEPS, StudyText
from sweeps import RunningCommand, command, database_url, differing, results_of, sweep
from waiting import until

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import StorageError

MINUTES = float(os.environ.get("SWEEPER_TEST_KILL_MINUTES", "10"))
TALLY = os.environ.get("SWEEPER_TEST_KILL_TALLY", "")

HEAD = KILL_ALL + textwrap.dedent("""
import errno
import random
import threading
import time
from sweeper import Halving
from sweeper.checkpoint.operations import FileOperations
from sweeper.checkpoint.remote_objects import ObjectStore

# SWEEPER_TEST_DEATHS is the file to which a trial that dies by itself adds a letter: where it was. Unset, none does.
# "rename:3:SIGTERM" has that happen inside the third rename of a trial's commits.
FAULT = os.environ.get("SWEEPER_TEST_FAULT")
COMMIT = ("make_directory", "create", "write", "fsync", "fsync_directory", "rename")
FileOperations.under_way = []
# What is under way, and how many operations until a death: variables of this module are restored with a trial.
FileOperations.left = 0

def die():
    with open(os.environ["SWEEPER_TEST_DEATHS"], "ab") as deaths:
        deaths.write((FileOperations.under_way or ["r"])[-1].encode())
    os.kill(os.getpid(), signal.SIGKILL)

def die_later(seconds):
    time.sleep(seconds)
    die()

class Mortal(keras.callbacks.Callback):
    "Lets its trial die at a moment of its training, or inside a later operation of its commits."

    def on_train_begin(self, logs=None):
        if "SWEEPER_TEST_DEATHS" not in os.environ:
            return
        chance = random.SystemRandom()
        if chance.random() < 0.15:
            return  # On a busy machine others may die before they have done anything.
        if chance.random() < 0.5:
            FileOperations.left = chance.randint(1, 90)
        else:
            moment = (chance.uniform(0, LONGEST),)
            threading.Thread(target=die_later, args=moment, daemon=True).start()

def fault_inside(owner, operation, letter, count, fault):
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
        FileOperations.under_way.append(letter)
        try:
            FileOperations.left -= 1
            if FileOperations.left == 0:
                die()
            return original(self, *arguments, **named)
        finally:
            FileOperations.under_way.pop()

    setattr(owner, operation, failing)

faulty, count, fault = FAULT.split(":") if FAULT else ("", "0", "")
for operation in COMMIT:
    fault_inside(FileOperations, operation, "c", int(count) * (operation == faulty), fault)
fault_inside(ObjectStore, "upload", "u", int(count) * (faulty == "upload"), fault)
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
    graph: bool = False

    @property
    def study(self):
        policy = 'audit="off", retries=dict(crash=10**6)'
        arguments = f'objective="val_loss", seed=5, {policy}, {self.arguments}'
        return StudyText(
            head=HEAD.replace("LONGEST", "2" if self.graph else "0.5"),
            data="" if self.graph else TWO_STEPS,
            eager=not self.graph,
            callbacks="Mortal()",
            arguments=arguments,
        )


KINDS = (
    Kind("commit", 'epochs=20, trials=14, sampler="random", checkpoint_every=Every(steps=3)'),
    Kind("promotion", "epochs=9, trials=18, concurrency=2, budget=Halving(factor=3)"),
    Kind("confirmation", "epochs=8, trials=8, concurrency=2, repeats=2", confirms=True),
    Kind(
        "upload",
        'epochs=8, trials=10, sampler="random", checkpoint_every=Every(steps=3)',
        uploads=True,
    ),
    Kind(
        "run", 'epochs=6, trials=10, sampler="random", checkpoint_every=Every(steps=7)', graph=True
    ),
)
_MIGRATE = """
import sys
from sweeper.db.database import Database
print(flush=True)
Database.open(sys.argv[1], create=True).close()
"""
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

    def add_to(self, path):
        """Add this to the tally in a file, to which other pieces may be adding at the same time."""
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = Tally.read(path)
            whole = Tally(
                stored.hits + self.hits,
                stored.wrong + self.wrong,
                stored.sweeps + self.sweeps,
                stored.trials + self.trials,
            )
            temporary = Path(f"{path}.new")
            temporary.write_text(json.dumps(vars(whole), indent=1, sort_keys=True))
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
        self._migrated()
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

    def _migrated(self):
        """Kill programs while they create the tables."""
        for _ in range(self.chance.randint(3, 9)):
            program = [sys.executable, "-c", _MIGRATE, self.storage]
            with subprocess.Popen(
                program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process:
                process.stdout.readline()
                time.sleep(self.chance.uniform(0, 0.6))
                fault = self.chance.choice(SIGNALS)
                if process.poll() is None:
                    self.hit("run" if self._is_whole() else "migration", fault)
                process.send_signal(getattr(signal, fault))

    def _is_whole(self):
        """Return whether all tables are there."""
        try:
            Database.open(self.storage, create=False, patience=0.0).close()
        except StorageError:
            return False
        return True

    def _with_deaths(self, words, moment):
        """Run the command under one fault, while most of its trials die, too; return its exit code."""
        deaths = self.directory / "deaths"
        deaths.write_bytes(b"")
        self._given = {"SWEEPER_TEST_DEATHS": str(deaths)} if self.chance.random() < 0.9 else {}
        code = self._under_a_fault(words, moment)
        of_training = "confirmation" if moment == "confirmation" else "run"
        places = {"c": "commit", "u": "upload", "r": of_training}
        for letter, count in Counter(deaths.read_text()).items():
            self.tally.hits[f"{self.database} {places[letter]} trial"] += count
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
                # Trials that die early do not come to the operation.
                if not until(lambda: run.process.poll() is not None, 20):
                    fault, moment = "SIGKILL", "run"
                    self._signal(run, fault)
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
            earliest = time.monotonic() + self.chance.uniform(0, 45)
            while run.wait_for(wanted) is not None and time.monotonic() < earliest:
                continue
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
    deadline, expected, piece = time.monotonic() + 60 * MINUTES, {}, time.time_ns()
    databases = (False, True) if os.environ.get(POSTGRES) else (False,)
    cases = list(itertools.product(KINDS, databases))
    random.shuffle(cases)
    for number, (kind, server) in enumerate(itertools.cycle(cases)):
        if time.monotonic() > deadline:
            break
        directory = tmp_path / f"{piece}-{number}"
        directory.mkdir()
        if kind not in expected:
            (directory / "whole").mkdir()
            expected[kind] = undisturbed(kind, directory / "whole")
        kind.study.write(directory / "small.py")
        tally = Tally(sweeps=1)
        with a_database(directory, server=server) as (storage, database):
            chance = random.Random(f"{piece} {number}")
            environment = s3_environment(s3_url) if kind.uploads else {}
            campaign = Campaign(kind, directory, storage, database, chance, tally, environment)
            campaign.run()
            for study, results in expected[kind].items():
                judged(tally, results, campaign.trials(study))
        if TALLY:
            tally.add_to(TALLY)
        print(tally.table())
        assert tally.wrong.total() == 0, directory
        shutil.rmtree(directory)
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
