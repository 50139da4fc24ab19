"""A real Optuna study in SQLite, and `sweeper dashboard` as the process that a user starts."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing


def make_study(path, *, wal=True):
    """Make the study "digits" with one trial of value 0.876543, and return the database's URL."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
    import optuna

    url = f"sqlite:///{path}"
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(study_name="digits", storage=storage, direction="maximize")
    trial = study.ask({"learning_rate": optuna.distributions.FloatDistribution(1e-4, 1e-2)})
    trial.report(0.5, 0)
    study.tell(trial, 0.876543)
    storage.engine.dispose()
    return url


def environment():
    """Return this process's environment, in which the package under test is found."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Dashboard:
    """`sweeper dashboard` on a free port; ``url`` is what it printed."""

    def __init__(self, storage, *more):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sweeper", "dashboard", "--storage", storage, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.stop(signal.SIGKILL)

    def stop(self, how):
        """Send a signal and return the exit code and what was still printed."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err
