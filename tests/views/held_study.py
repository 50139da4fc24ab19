"""A study that two workers run, held where a test wants it, with a trial that was killed and resumed.

Trial 0 is killed in its third epoch and resumed; it and trial 1 end. Trial 2 then waits at its
third epoch until it is let go, so that all that is shown of the study stands still.
"""

import os
import signal
import time
from contextlib import ExitStack

from study_files import StudyText
from sweeps import LIMIT, RunningCommand, database_url

from sweeper.db.database import Database
from sweeper.db.repository import Repository

NAME = "resumed-sweep"
EPOCHS = 4
HELD = StudyText(
    name=NAME,
    head="""
    import time

    GATES = Path(os.environ["SWEEPER_TEST_GATES"])


    class Held(keras.callbacks.Callback):
        def __init__(self, gate):
            super().__init__()
            self.gate = gate

        def on_epoch_begin(self, epoch, logs=None):
            while epoch >= 2 and not (GATES / self.gate).exists():
                time.sleep(0.02)
    """,
    data="y = x[:, 0] > 0",
    metrics='"accuracy"',
    callbacks="Held(str(trial.number))",
    arguments='objective="val_accuracy", direction="maximize", epochs=4, trials=3, '
    'sampler="random", seed=11, audit="off"',
)


class HeldStudy:
    """The study while it runs, in ``runs`` below a directory.

    Attributes:
        directory: Where its commands are typed.
        storage: Its database.
    """

    def __init__(self, directory):
        self.directory = directory
        self.storage = database_url(directory / "runs")
        self._gates = directory / "gates"
        self._gates.mkdir()
        self._opened = ExitStack()
        self._repository = None
        file = HELD.write(directory / "held.py")
        environment = {"SWEEPER_TEST_GATES": str(self._gates)}
        self._run = RunningCommand("run", file, "--workers", 2, cwd=directory, env=environment)

    def __enter__(self):
        self._wait(lambda t: _held(t, 0, attempts=1) and _held(t, 1, attempts=1))
        # The disk decides from where a trial resumes; the row of a checkpoint is written later.
        step = f"runs/{NAME}/trial-00000/attempt-01/checkpoints/step-000000040"
        self._wait(lambda _: (self.directory / step / "manifest.json").exists())
        pid = self.trials()[0].attempts[-1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._wait(lambda t: _held(t, 0, attempts=2))
        self.let_go(0, 1)
        self._wait(lambda t: _held(t, 2, attempts=1))
        return self

    def __exit__(self, kind, error, trace):
        self._opened.close()
        self._run.__exit__(kind, error, trace)

    def let_go(self, *numbers):
        """Have these trials train on."""
        for number in numbers:
            (self._gates / str(number)).touch()

    def end(self):
        """Wait for the run's end; its exit code."""
        return self._run.end()

    def trials(self):
        """The trials so far; none before the study is there."""
        if self._repository is None and (self.directory / "runs" / "sweeper.db").exists():
            database = self._opened.enter_context(Database.open(self.storage, create=True))
            self._repository = Repository(database)
        if self._repository is None or NAME not in self._repository.study_names():
            return ()
        return self._repository.trials(NAME)

    def _wait(self, reached):
        deadline = time.monotonic() + LIMIT
        while not reached(self.trials()):
            assert self._run.process.poll() is None, self._run.err
            assert time.monotonic() < deadline, self._run.err
            time.sleep(0.1)


def _held(trials, number, *, attempts):
    """Whether the trial waits at its third epoch, in that attempt."""
    if len(trials) <= number:
        return False
    trial = trials[number]
    begun = bool(trial.attempts) and trial.attempts[-1].start_step is not None
    return begun and len(trial.attempts) == attempts and len(trial.epochs) == 2
