"""What Optuna and its tools see in a database."""

import contextlib

import optuna


@contextlib.contextmanager
def closing(storage):
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def optuna_storage(database):
    """Give Optuna's own storage of the database, as a tool opens it, and close it."""
    return closing(database.optuna_storage())


@contextlib.contextmanager
def as_optuna_sees_it(database):
    with optuna_storage(database) as storage:
        yield optuna.load_study(study_name="digits", storage=storage)


def optuna_trials(database):
    with as_optuna_sees_it(database) as study:
        return study.trials
