"""Studies whose trials are threads of the test: each plays a script, and a real worker runs them.

`scripted_sweep` gives a study in a database with such a worker. A script is a function of its
`ScriptedTrial`, which says what a trial's process says, and returns the exit code of that process.
"""

import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from databases import opened_database
from plain_settings import plain_settings
from waiting import until

from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.declarations.space import FloatRange
from sweeper.definition.definition import StudyDefinition, StudySettings
from sweeper.records.events import Event, Notice
from sweeper.records.results import EpochRecord
from sweeper.run.launch.trial_process import ExitStatus
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Channel
from sweeper.run.serving import run_slots
from sweeper.run.worker.context import SlotContext, StudyAccess
from sweeper.run.worker.slot import serve_slot
from sweeper.search.spec import search_spec, search_window
from sweeper.support.paths import RunPaths

Script = Callable[["ScriptedTrial"], int]


class _Refused(Exception):  # noqa: N818 - an outcome
    """The worker answered with an error, which has failed the trial."""


class ScriptedTrial:
    """Both sides of one attempt's process: what the worker sees, and what the script uses."""

    pid = 2**22 + 1

    def __init__(self, assignment, script):
        self.assignment = assignment
        self.killed = threading.Event()
        self.channel, far_end = Channel.pair()
        self._own = Channel.on(far_end.detach())
        self._status = None
        self._over = threading.Event()
        threading.Thread(target=self._run, args=(script,), daemon=True).start()

    def say(self, message):
        self._own.send(message)

    def ask(self, question):
        """Return the worker's answer; an error ends the script."""
        self.say(question)
        answer = self._own.receive(20)
        if answer.error is not None:
            self.say(messages.Failed(answer.error))
            raise _Refused
        return answer.value

    def suggest(self, name="x", low=0.0, high=1.0):
        return float(self.ask(messages.Suggest(name, FloatRange(low, high))))

    def judge(self, *values):
        """Return whether the pruner ends the trial, which had these values until now."""
        return self.ask(messages.Judge(tuple(enumerate(values))))

    def begin(self, step=0, epoch=0, **more):
        self.say(messages.Started(step, epoch, 1, **more))

    def end_epoch(self, epoch, step=1, **metrics):
        self.say(messages.EpochsEnded((EpochRecord(epoch, metrics),), step, 0.1))

    def keep(self, step, path):
        """Tell of a checkpoint."""
        self.say(messages.CheckpointCommitted(step, 0, "d" * 32, 1, str(path)))

    def finish(self, value, step=1, **more):
        self.say(messages.Finished(step=step, value=value, **{"digest": "d" * 32, **more}))
        return 0

    def fail(self, error, **more):
        self.say(messages.Failed(error, **more))
        return 0

    def stop_here(self, step):
        self.say(messages.StoppedHere(step=step))
        return 0

    def write(self, raw):
        """What the trial's own code might write into the pipe."""
        os.write(self._own.connection.fileno(), raw)

    def wait_for_stop(self):
        while not self.killed.is_set():
            if isinstance(self._own.receive(0.05), messages.Stop):
                return

    def wait(self, timeout):
        return ExitStatus(self._status) if self._over.wait(timeout) else None

    def kill(self):
        self.killed.set()

    def _run(self, script):
        try:
            code = script(self)
        except _Refused:
            code = 0
        self._status = -9 if self.killed.is_set() else code
        self._over.set()
        self._own.close()


def finish(trial):
    trial.begin()
    return trial.finish(float(trial.assignment.number))


def crash(trial):
    del trial
    return -11


def run_out_of_memory(trial):
    return trial.fail("MemoryError: 65 GB", fault="memory")


def raise_error(trial):
    return trial.fail("ValueError: no such layer", traceback="Traceback\n")


def stop_by_itself(trial):
    """As after a SIGTERM to the trial's own process."""
    return trial.stop_here(3)


def hang(trial):
    trial.begin()
    trial.killed.wait(30)
    return 0


def train_until_stopped(trial):
    trial.begin()
    trial.wait_for_stop()
    return trial.stop_here(5)


@dataclass
class ScriptedLauncher:
    """Plays ``scripts``: by trial and attempt, by trial, or for all (key None)."""

    scripts: dict[Any, Script]
    launched: list[messages.Assignment] = field(default_factory=list)
    isolation = "spawn"

    def launch(self, assignment):
        self.launched.append(assignment)
        keys = (assignment.number, assignment.attempt), assignment.number, None
        script = next((self.scripts[key] for key in keys if key in self.scripts), finish)
        return ScriptedTrial(assignment, script)

    def close(self):
        pass


def assignment_in(directory, **changes):
    """An assignment whose files are in a directory; some changes are of the study's settings."""
    names = {setting.name for setting in fields(StudySettings)} & changes.keys()
    values = {
        "settings": plain_settings(**{name: changes.pop(name) for name in names}),
        "number": 0,
        "attempt": 1,
        "files": str(directory / "files"),
        "log": str(directory / "log.txt"),
        "checkpoints": (str(directory / "checkpoints"),),
    }
    return messages.Assignment(**{**values, **changes})


def never(_trial):
    """Stand where a definition needs a factory; a scripted trial builds nothing."""
    raise AssertionError("a scripted trial called its study's factory")


def definition(**arguments):
    defaults = {
        "name": "scripted",
        "epochs": 1,
        "trials": 1,
        "sampler": "random",
        "threads": 1,
        "objective": "loss",
    }
    return StudyDefinition(model=never, data=never, **{**defaults, **arguments})


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


def slot_context(
    repository, settings, runs, runner, listener, *, definition=None, host=None, **of_context
):
    """Return what the slots of a worker share; ``host`` is where it says that it is."""
    worker = WorkerIdentity.here()
    window = search_window(settings)
    study = StudyAccess(
        repository=repository,
        settings=settings,
        search=search_spec(settings, definition, window),
        paths=RunPaths(runs, settings.name),
        worker=worker if host is None else replace(worker, host=host),
    )
    return SlotContext(study, runner=runner, listener=listener, **of_context)


@dataclass
class ScriptedSweep:
    """A study in a database, and a worker for it whose trials are scripted."""

    repository: Repository
    launcher: ScriptedLauncher
    context: SlotContext
    events: list[Event]

    @property
    def trials(self):
        return self.repository.trials("scripted")

    @property
    def results(self):
        return self.repository.results("scripted")

    @property
    def states(self):
        return [trial.state for trial in self.trials]

    @property
    def notices(self):
        return [event.message for event in self.events if isinstance(event, Notice)]

    @property
    def error(self):
        """What has ended the run."""
        return self.context.error

    def outcomes(self, number=0):
        return [attempt.outcome for attempt in self.trials[number].attempts]

    def attempt_error(self, number=0):
        return self.trials[number].attempts[0].error or ""

    def serve(self, slots=1):
        """Run the study's trials in so many slots until none is left, or until something ends the run."""
        run_slots(lambda: serve_slot(self.context), slots, self.context.stopping)

    @contextmanager
    def serving(self):
        """Run a slot beside the test from the first trial's start on; it has to end afterwards."""
        slot = threading.Thread(target=serve_slot, args=(self.context,), daemon=True)
        slot.start()
        assert until(lambda: self.launcher.launched)
        yield
        slot.join(20)
        assert not slot.is_alive(), "the slot is wedged"


@contextmanager
def scripted_sweep(directory, scripts, *, settings=None, context=None, **arguments):
    """Give the sweep of a directory, which goes on where it stood.

    ``arguments`` are the definition's, unless ``settings`` stand for it; ``context`` has arguments of
    the slots' context.
    """
    study_definition = definition(**arguments)
    events = []
    settings = settings or study_definition.settings()
    with opened_database(directory / "scripted.db") as database:
        repository = Repository(database)
        launcher = ScriptedLauncher(scripts)
        repository.create_or_open(row_of(settings, search_window(settings)))
        slots_context = slot_context(
            *(repository, settings, directory, launcher, events.append),
            **{"definition": study_definition, **(context or {})},
        )
        yield ScriptedSweep(repository, launcher, slots_context, events)
