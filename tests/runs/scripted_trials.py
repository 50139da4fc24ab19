"""Trial processes that are threads of the test, each saying and doing what a script has it do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from databases import opened_database
from plain_settings import plain_settings

from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.records.events import Event, Notice
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import (
    Assignment,
    Failed,
    Finished,
    Started,
    Stop,
    StoppedHere,
)
from sweeper.run.worker.context import SlotContext, StudyAccess
from sweeper.search.spec import search_spec
from sweeper.support.paths import RunPaths

Script = Callable[["ScriptedTrial"], int]
"""Plays one attempt; the exit code of its process."""


class ScriptedTrial:
    """Both sides of one attempt's process: what the worker sees, and what the script uses."""

    pid = 2**22 + 1

    def __init__(self, assignment, script):
        self.assignment = assignment
        self.killed = threading.Event()
        self.channel, theirs = Channel.pair()
        self._own = Channel.on(theirs.detach())
        self._status = None
        self._over = threading.Event()
        threading.Thread(target=self._run, args=(script,), daemon=True).start()

    @property
    def key(self):
        return self.assignment.number, self.assignment.attempt

    def say(self, message):
        self._own.send(message)

    def write(self, raw):
        """What the trial's own code might write into the pipe."""
        os.write(self._own.connection.fileno(), raw)

    def wait_for_stop(self):
        while not self.killed.is_set():
            if isinstance(self._own.receive(0.05), Stop):
                return

    def wait(self, timeout):
        return ExitStatus(self._status) if self._over.wait(timeout) else None

    def kill(self):
        self.killed.set()

    def _run(self, script):
        code = script(self)
        self._status = -9 if self.killed.is_set() else code
        self._over.set()
        self._own.close()


def finish(trial):
    trial.say(Started(0, 0, 1))
    trial.say(Finished(step=1, value=float(trial.assignment.number), digest="d" * 32))
    return 0


def crash(trial):
    del trial
    return -11


def run_out_of_memory(trial):
    trial.say(Failed("MemoryError: 65 GB", fault="memory"))
    return 0


def raise_error(trial):
    trial.say(Failed("ValueError: no such layer", traceback="Traceback\n"))
    return 0


def stop_by_itself(trial):
    """As after a SIGTERM to the trial's own process."""
    trial.say(StoppedHere(step=3))
    return 0


def hang(trial):
    trial.say(Started(0, 0, 1))
    trial.killed.wait(30)
    return 0


def train_until_stopped(trial):
    trial.say(Started(0, 0, 1))
    trial.wait_for_stop()
    trial.say(StoppedHere(step=5))
    return 0


@dataclass
class ScriptedLauncher:
    """Plays ``scripts``: by trial and attempt, by trial, or for all (key None)."""

    scripts: dict[Any, Script]
    launched: list[Assignment] = field(default_factory=list)
    isolation = "spawn"

    def launch(self, assignment):
        self.launched.append(assignment)
        number, attempt = assignment.number, assignment.attempt
        script = (
            self.scripts.get((number, attempt))
            or self.scripts.get(number)
            or self.scripts.get(None, finish)
        )
        return ScriptedTrial(assignment, script)

    def close(self):
        pass


def assignment_in(directory, **changes):
    """An assignment whose files are in a directory; some changes are of the study's settings."""
    names = {each.name for each in fields(StudySettings)} & changes.keys()
    values = {
        "settings": plain_settings(**{name: changes.pop(name) for name in names}),
        "number": 0,
        "attempt": 1,
        "files": str(directory / "files"),
        "log": str(directory / "log.txt"),
        "checkpoints": (str(directory / "checkpoints"),),
    }
    return Assignment(**{**values, **changes})


def never(_trial):
    """Stand where a definition needs a factory; a scripted trial builds nothing."""
    msg = "a scripted trial called its study's factory"
    raise AssertionError(msg)


def definition(**arguments):
    given = {
        "name": "scripted",
        "epochs": 1,
        "trials": 1,
        "sampler": "random",
        "threads": 1,
        "objective": "loss",
    }
    return StudyDefinition(model=never, data=never, **{**given, **arguments})


def row_of(settings, window=None, **changes):
    """The row of a study with these settings."""
    row = StudyRow(
        name=settings.name,
        definition=settings.to_json(),
        objective=settings.objective,
        direction=settings.direction,
        target=settings.trials,
        window=window,
        seed=settings.seed,
    )
    return replace(row, **changes)


def scripted_context(
    repository,
    directory,
    settings,
    launcher,
    listener=lambda _event: None,
    *,
    search=None,
    window=None,
    **of_context,
):
    """Store the study, and return what slots that run its trials share."""
    repository.create_or_open(row_of(settings, window))
    study = StudyAccess(
        repository=repository,
        settings=settings,
        search=search or search_spec(settings, window=window),
        paths=RunPaths(directory, settings.name),
        worker=WorkerIdentity.here(),
    )
    return SlotContext(study, runner=launcher, listener=listener, **of_context)


@dataclass
class ScriptedSweep:
    """A study in a database, and a worker for it whose trials are scripted."""

    repository: Repository
    settings: StudySettings
    launcher: ScriptedLauncher
    context: SlotContext
    events: list[Event]

    @property
    def trials(self):
        return self.repository.trials("scripted")

    @property
    def notices(self):
        return [event.message for event in self.events if isinstance(event, Notice)]

    def outcomes(self, number=0):
        return [attempt.outcome for attempt in self.trials[number].attempts]


@contextmanager
def scripted_sweep(directory, scripts, **arguments):
    """Make the study; ``arguments`` are its definition's, or its slots' context's by ``context=``."""
    of_context = arguments.pop("context", {})
    settings = definition(**arguments).settings()
    events = []
    with opened_database(directory / "scripted.db") as database:
        repository = Repository(database)
        launcher = ScriptedLauncher(scripts)
        context = scripted_context(
            repository, directory, settings, launcher, events.append, **of_context
        )
        yield ScriptedSweep(repository, settings, launcher, context, events)
