"""Formats of numbers, durations, sizes and parameters for people, and results as flat rows for CSV.

A row has the values of a verb's JSON, one in each column. Epochs are counted from 0, as in JSON.
Missing values are left out.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.declarations.space import CategoricalChoice
from sweeper.records.evaluations import EvaluationRecord
from sweeper.records.results import Params, StudyStatus, TrialRecord, TrialStatus

_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_UNITS = ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "m"), (_MINUTE, "m", 1, "s"))
_KIBI = 1024


def value_text(value: float | None, digits: int = 5) -> str:
    """Format a metric with ``digits`` significant digits; ``-`` for none."""
    # A sum with 0.0 has no negative zero.
    return "-" if value is None else f"{value + 0.0:.{digits}g}"


def time_text(seconds: float | None) -> str:
    """Format a duration in its two largest units; ``-`` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 1 else f"{max(seconds, 0.0) * 1000:.0f}ms"
    whole = round(seconds)
    for unit, name, part, part_name in _UNITS:
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // part:02d}{part_name}"
    return f"{whole}s"


def size_text(count: int) -> str:
    """Format a number of bytes in the largest binary unit with a value of at least 1."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < _KIBI:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _KIBI
    return f"{amount:.1f} TiB"


def params_text(params: Params) -> str:
    """Format parameters as ``name=value`` words on one line, with strings quoted only if necessary."""
    return " ".join(f"{name}={choice_text(value)}" for name, value in params.items())


def metrics_text(metrics: Mapping[str, float], objective: str | None = None) -> str:
    """Format metrics as ``name=value`` words on one line, the objective first."""
    return " ".join(
        f"{name}={value_text(metrics[name])}" for name in objective_first(metrics, objective)
    )


def objective_first(metrics: Mapping[str, float], objective: str | None) -> list[str]:
    """Return the metrics' names in their order, with the objective's moved to the front."""
    return sorted(metrics, key=lambda name: name != objective)


def one_line(text: str) -> str:
    """Return ``text`` with every run of white space replaced by one space."""
    return " ".join(text.split())


def last_line(text: str) -> str:
    """Return the last line that is not blank, which in a traceback is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def choice_text(value: CategoricalChoice) -> str:
    """Format one parameter's value, with a string quoted only if necessary."""
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if value.isprintable() and value and " " not in value else json.dumps(value)


Row = dict[str, Any]
"""A row of CSV, by column."""


def study_rows(statuses: Sequence[StudyStatus]) -> list[Row]:
    """Return a row per study: its counts, and its best trial."""
    columns = ("study", "objective", "direction", "target")
    states = ("complete", "running", "interrupted", "paused", "pruned", "failed", "waiting")
    return [
        {
            **_row(status, *columns, *states),
            "best": None if status.best is None else status.best.number,
            "value": None if status.best is None else status.best.value,
        }
        for status in statuses
    ]


def trial_status_rows(trials: Sequence[TrialStatus]) -> list[Row]:
    """Return a row per trial of a status, in their order."""
    columns = ("number", "state", "value", "values", "epoch", "epochs", "attempts")
    return [_row(trial, *columns, "params", "metrics") for trial in trials]


def trial_rows(trials: Sequence[TrialRecord]) -> list[Row]:
    """Return a row per trial, with the metrics of its latest epoch."""
    columns = ("study", "number", "state", "value", "values", "epochs", "attempts")
    return [
        {
            **_row(trial, *columns, "seed", "digest", "code", "params"),
            **_named("metrics", trial.epochs[-1].metrics if trial.epochs else {}),
        }
        for trial in trials
    ]


def evaluation_rows(records: Sequence[EvaluationRecord]) -> list[Row]:
    """Return a row per checkpoint, with its rank in the order given."""
    rows = []
    for rank, record in enumerate(records, 1):
        values = record.to_json()
        metrics = values.pop("metrics")
        rows.append({"rank": rank, **values, **_named("metrics", metrics)})
    return rows


def _row(record: Any, *names: str) -> Row:
    """Return attributes as columns: one for each key of a mapping, and the length of a sequence."""
    row: Row = {}
    for name in names:
        value = getattr(record, name)
        if isinstance(value, Mapping):
            row |= _named(name, value)
        elif isinstance(value, tuple):
            row[name] = len(value)
        elif name != "values":
            row[name] = value
    return row


def _named(prefix: str, values: Mapping[str, Any]) -> Row:
    return {f"{prefix}_{name}": value for name, value in values.items()}
