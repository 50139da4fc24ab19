"""Running sweeps from tests: in this process, as a command, and as a command to be interrupted."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from databases import place_database
from forked_programs import ADDRESS

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.records.events import Event, Notice
from sweeper.records.results import StudyResults
from sweeper.run.launch import server_process
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.run import run_sweep

LIMIT = 180.0
"""Seconds after which a command counts as hanging."""

COMMAND = """
import sys
from sweeper.run.launch import server_process

server_process._SERVER = {server!r}
from sweeper.cli.main import main

sys.exit(main())
"""
"""``sweeper`` as a program, whose fork servers are those of this process' tests."""


def notices_of(events):
    """The messages of the notices among these events."""
    return [event.message for event in events if isinstance(event, Notice)]


@dataclass
class Swept:
    results: StudyResults
    events: list[Event] = field(default_factory=list)

    @property
    def trials(self):
        return self.results.trials

    @property
    def notices(self):
        return notices_of(self.events)


def database_url(runs):
    return f"sqlite:///{runs / 'sweeper.db'}"


def sweep(
    source,
    runs,
    *,
    study=None,
    workers=2,
    trials=None,
    isolation="auto",
    extension=None,
    accept_inexact=False,
):
    """Run a study's file from this process, which imports neither it nor TensorFlow."""
    place_database(runs / "sweeper.db")
    events = []
    results = run_sweep(
        RunRequest(
            WorkerOptions(
                workers,
                database_url(runs),
                runs,
                isolation=isolation,
                accept_inexact=accept_inexact,
            ),
            events.append,
            source=None if source is None else str(source),
            study=study,
            trials=trials,
            extension=extension,
        )
    )
    return Swept(results, events)


def sweep_inline(study, directory, **options):
    """Write a study's text to a directory, and run it in this process, below ``runs`` there."""
    file = study.write(directory / f"{study.name}.py")
    return sweep(file, directory / "runs", workers=1, isolation="inline", **options)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def _environment(extra):
    variables = {n: v for n, v in os.environ.items() if not n.startswith("SWEEPER_")}
    variables |= {name: os.environ[name] for name in (ADDRESS,) if name in os.environ}
    return {**variables, "PYTHONPATH": str(Path(__file__).parents[2]), **(extra or {})}


def command(*words, cwd, env=None):
    """Run ``sweeper WORDS`` to its end."""
    process = _begun(words, cwd, env, session=False)
    out = _Reading(process.stdout)
    err = _Reading(process.stderr)
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Ended(code, out.all(), err.all())


def python(*words, cwd, env=None):
    process = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=_environment(env),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return Ended(process.returncode, process.stdout, process.stderr)


def _begun(words, cwd, extra, *, session, before=()):
    """``sweeper WORDS``, with the hash seed of trials; ``before`` are the words of a program that runs it."""
    program = COMMAND.format(server=server_process._SERVER)
    return subprocess.Popen(
        [*before, sys.executable, "-P", "-c", program, *map(str, words)],
        cwd=cwd,
        env=server_process.HASH_SEED | _environment(extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=session,
    )


class _Reading:
    """What comes out of a pipe, while something else is waited for."""

    def __init__(self, stream):
        self._text = ""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def all(self):
        self._thread.join(LIMIT)
        return self._text

    def _read(self, stream):
        with stream:
            self._text = stream.read()


class RunningCommand:
    """``sweeper WORDS`` in a process group of its own, its progress read as it comes."""

    def __init__(self, *words, cwd, env=None, before=()):
        self.process = _begun(words, cwd, env, session=True, before=before)
        self.lines = []
        self._news = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        if self.process.poll() is None:
            self.kill_group()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def err(self):
        return "".join(self.lines)

    def wait_for(self, *texts):
        """The next line of progress that holds every one of ``texts``; None if it ends before."""
        deadline = time.monotonic() + LIMIT
        while True:
            line = self._news.get(timeout=max(0.0, deadline - time.monotonic()))
            if line is None or all(text in line for text in texts):
                return line

    def signal(self, number):
        self.process.send_signal(number)

    def kill_group(self):
        """SIGKILL to the whole process group, and wait until it is gone."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.wait(LIMIT)
        self.end()

    def end(self):
        """Wait for the end; the exit code."""
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code

    def _read(self):
        stream = self.process.stderr
        if stream is not None:
            with stream:
                for line in stream:
                    self.lines.append(line)
                    self._news.put(line)
        self._news.put(None)


def trials_in(runs, study="small"):
    with Database.open(database_url(runs), create=False) as database:
        return Repository(database).trials(study)


@dataclass(frozen=True)
class Result:
    """All of a trial that must not depend on how it came about."""

    state: str
    params: Mapping[str, object]
    value: float | None
    seed: int
    digest: str | None
    epochs: tuple[tuple[int, Mapping[str, float]], ...]


def results_of(trials):
    return {
        t.number: Result(
            t.state,
            dict(t.params),
            t.value,
            t.seed,
            t.digest,
            tuple((e.epoch, dict(e.metrics)) for e in t.epochs),
        )
        for t in trials
    }


def differing(one, other):
    """The numbers of the trials whose results are not the same, bit for bit."""
    return sorted(n for n in one.keys() | other.keys() if one.get(n) != other.get(n))
