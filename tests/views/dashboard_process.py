"""A real Optuna study in SQLite, and `sweeper dashboard` as the process that a user starts."""

import sqlite3
from contextlib import closing, contextmanager

from sweeps import RunningCommand


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


@contextmanager
def running_dashboard(*words, cwd, port=0):
    """Run `sweeper dashboard` until the block ends; it is given, and the URL that it printed."""
    with RunningCommand("dashboard", *words, "--port", port, cwd=cwd) as running:
        url = running.process.stdout.readline().strip()
        assert url, running.err
        yield running, url
