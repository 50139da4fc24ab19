"""Results of studies that were never run, for what draws and prints them."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sweeper import errors
from sweeper.records.results import (
    AttemptRecord,
    BestTrial,
    CheckpointRecord,
    EpochRecord,
    StudyResults,
    StudyStatus,
    TrialRecord,
    TrialStatus,
)

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NASTY = "<img src=x onerror=alert(1)>"


def attempt(number, outcome, steps=(0, 45), *, seconds=9.0, error=None):
    """An attempt; where it has no outcome, it runs."""
    end = None if outcome is None else BEGAN + timedelta(seconds=seconds)
    return AttemptRecord(number, outcome, *steps, "host-a", 4711, BEGAN, end, error)


def trial_record(number, *, state="complete", error=None, **changes):
    """Return a trial with every part filled."""
    values = {
        "params": {"learning_rate": 0.01 * (number + 1), "optimizer": "rmsprop"},
        "value": 0.9 + number / 100 if state == "complete" else None,
        "seed": 7 + number,
        "digest": "d" * 32,
        "epochs": (EpochRecord(0, {"loss": 0.5, "val_accuracy": 0.9 + number / 100}),),
        "attempts": (attempt(1, None if state == "running" else state, error=error),),
        "checkpoints": (CheckpointRecord(45, 1, "c" * 32, 2048, "runs/digits/step-000000045"),),
    }
    return TrialRecord(**{"study": "digits", "number": number, "state": state, **values, **changes})


def status_of(trial):
    """Return what the study's status has of a trial."""
    error = trial.attempts[-1].error if trial.attempts else None
    return TrialStatus(
        number=trial.number,
        state=trial.state,
        params=trial.params,
        value=trial.value,
        epoch=len(trial.epochs),
        epochs=3,
        metrics=trial.epochs[-1].metrics if trial.epochs else {},
        values=trial.values,
        reuses=trial.reuses,
        attempts=len(trial.attempts),
        error=error and error.rstrip("\n").rpartition("\n")[2],
        error_kind=error and kind_of(error),
    )


def kind_of(error):
    """Return the kind that a worker stores for an error of the class that its last line names."""
    name = error.rstrip("\n").rpartition("\n")[2].partition(":")[0]
    cls = getattr(errors, name, errors.SweeperError)
    if cls.of_study:
        return "mistake"
    return "lasting" if cls.lasting else "other"


def made(name, *trials, direction="maximize", **changes):
    """Return the results of a study that has these trials."""
    sign = 1 if direction == "maximize" else -1
    trials = tuple(replace(trial, study=name) for trial in trials)
    ended = [t for t in trials if t.state == "complete" and not math.isnan(t.value or 0.0)]
    best = max(ended, key=lambda trial: sign * (trial.value or 0.0), default=None)
    states = [trial.state for trial in trials]
    status = {
        "target": len(trials),
        **{state: states.count(state) for state in set(states)},
        "best": None if best is None else BestTrial(best.number, best.value, best.params),
        "objective": "val_accuracy",
        "trials": tuple(map(status_of, trials)),
    }
    return StudyResults(StudyStatus(name, direction=direction, **{**status, **changes}), trials)
