"""Results as flat rows for CSV: what the JSON of a verb has, a column a value.

Epochs are counted as in JSON, from 0. What a row lacks is left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.results import StudyStatus, TrialRecord, TrialStatus

Row = dict[str, Any]
"""A line of CSV by its columns' names."""


def study_rows(statuses: Sequence[StudyStatus]) -> list[Row]:
    """Return a row per study: its counts, and its best trial."""
    return [
        {
            "study": status.study,
            "objective": status.objective,
            "direction": status.direction,
            "target": status.target,
            "complete": status.complete,
            "running": status.running,
            "interrupted": status.interrupted,
            "paused": status.paused,
            "pruned": status.pruned,
            "failed": status.failed,
            "waiting": status.waiting,
            "best": None if status.best is None else status.best.number,
            "value": None if status.best is None else status.best.value,
        }
        for status in statuses
    ]


def trial_status_rows(trials: Sequence[TrialStatus]) -> list[Row]:
    """Return a row per trial of a status, in their order."""
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "value": trial.value,
            **_named("values", trial.values or {}),
            "epoch": trial.epoch,
            "epochs": trial.epochs,
            "attempts": trial.attempts,
            **_named("params", trial.params),
            **_named("metrics", trial.metrics),
        }
        for trial in trials
    ]


def trial_rows(trials: Sequence[TrialRecord]) -> list[Row]:
    """Return a row per trial, with the metrics of its latest epoch."""
    return [
        {
            "study": trial.study,
            "number": trial.number,
            "state": trial.state,
            "value": trial.value,
            **_named("values", trial.values or {}),
            "epochs": len(trial.epochs),
            "attempts": len(trial.attempts),
            "seed": trial.seed,
            "digest": trial.digest,
            "code": trial.code,
            **_named("params", trial.params),
            **_named("metrics", trial.epochs[-1].metrics if trial.epochs else {}),
        }
        for trial in trials
    ]


def epoch_rows(trial: TrialRecord) -> list[Row]:
    """Return a row per epoch of one trial: its number from 0, and its metrics."""
    return [epoch.to_json() for epoch in trial.epochs]


def evaluation_rows(records: Sequence[EvaluationRecord]) -> list[Row]:
    """Return a row per checkpoint, with its rank in the order given."""
    rows = []
    for rank, record in enumerate(records, 1):
        values = record.to_json()
        metrics = values.pop("metrics")
        rows.append({"rank": rank, **values, **_named("metrics", metrics)})
    return rows


def _named(prefix: str, values: Mapping[str, Any]) -> Row:
    return {f"{prefix}_{name}": value for name, value in values.items()}
