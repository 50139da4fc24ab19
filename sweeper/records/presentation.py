"""Presentation of results: plain tables for pandas, a terminal and a notebook.

The module of the records imports this one to print them, so their types are not imported here.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sweeper.records.configurations import ConfigurationRecord, leader_sentence
from sweeper.records.printing import json_fields, value_shown
from sweeper.records.status import StudyStatus, ranked

TrialRecord = Any
"""Type `sweeper.records.results.TrialRecord`, whose module imports this one."""

_TEXT_ROWS, _CELL_ROWS, _CELL_WIDTH = 12, 30, 200


def trial_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each trial, with a summary of its attempts."""
    return [
        {
            "trial": t.number,
            "state": t.state,
            "value": t.value,
            **({} if t.value_of is None else {"value_of": t.value_of}),
            **{f"values_{name}": value for name, value in (t.values or {}).items()},
            **{f"params_{name}": value for name, value in t.params.items()},
            "epochs": len(t.epochs),
            "attempts": len(t.attempts),
            "seconds": sum(
                (a.ended_at - a.started_at).total_seconds() for a in t.attempts if a.ended_at
            ),
            "resumed_at_steps": [a.start_step for a in t.attempts if a.start_step],
            "began_at": t.attempts[0].started_at if t.attempts else None,
            "ended_at": t.attempts[-1].ended_at if t.attempts else None,
            "seed": t.seed,
            "digest": t.digest,
            "error": t.error,
        }
        for t in trials
    ]


def epoch_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each epoch of each trial."""
    return [{"trial": t.number, **epoch.to_json()} for t in trials for epoch in t.epochs]


def attempt_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each attempt at a trial."""
    return [
        {
            "trial": t.number,
            **attempt.to_json(),
            "started_at": attempt.started_at,
            "ended_at": attempt.ended_at,
        }
        for t in trials
        for attempt in t.attempts
    ]


def configuration_rows(configurations: Iterable[ConfigurationRecord]) -> list[dict[str, Any]]:
    """Return one row for each configuration."""
    return [
        {
            "configuration": c.number,
            **json_fields(c, "state", "mean", "std", "trials"),
            **dict(zip(("low", "high"), c.interval or (None, None), strict=True)),
            "repeats": len(c.values),
            "verdict": None if c.comparison is None else c.comparison.verdict,
            **{f"params_{name}": value for name, value in c.params.items()},
        }
        for c in configurations
    ]


def results_text(status: StudyStatus, trials: Sequence[TrialRecord]) -> str:
    """Return a headline and a table of the best trials, cut to the terminal's width."""
    return _text_of(status, trials, shutil.get_terminal_size().columns, _TEXT_ROWS)


def results_html(status: StudyStatus, trials: Sequence[TrialRecord]) -> str:
    """Return the same text as HTML for a notebook's cell, which is wider and scrolls."""
    text = html.escape(_text_of(status, trials, _CELL_WIDTH, _CELL_ROWS))
    return f'<pre style="overflow-x:auto;white-space:pre">{text}</pre>'


def _text_of(status: StudyStatus, trials: Sequence[TrialRecord], width: int, most: int) -> str:
    lines = [f"{status.study}: {progress_text(status)}"]
    chosen = ranked(trials, status)[:most]
    if chosen:
        columns, optional = _columns(status, chosen)
        names = list(columns)
        for name in optional:
            if sum(len(cells[0]) + 2 for cells in columns.values()) - 2 > width:
                del columns[name]
        lines += ["  ".join(cells) for cells in zip(*columns.values(), strict=True)]
        hidden = ", ".join(name for name in names if name not in columns)
        if hidden:
            lines.append(f"too wide to show: {hidden}; results.to_dataframe() has them")
    left = len(trials) - len(chosen)
    if left:
        lines.append(f"and {left} more: results.trials, or results.to_dataframe()")
    return "\n".join(lines)


def progress_text(status: StudyStatus) -> str:
    """Return how many trials are finished, and what is the best so far."""
    done = f"{status.finished} of {status.target} trials finished"
    if status.failed:
        done += f", {status.failed} failed"
    return f"{done}; {leader_text(status)}"


def leader_text(status: StudyStatus) -> str:
    """Return which trial, front or configuration is the best so far."""
    if status.objectives:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        return f"Pareto front: {numbers or 'none yet'}"
    if status.best is None:
        return "no best trial yet"
    text = leader_sentence(status.configurations)
    if text is None:
        value = f"{status.objective} {value_shown(status.best.value)}"
        text = f"best: trial {status.best.number} with {value} ({status.direction})"
    confirmed = leader_sentence(status.confirmed)
    return text if confirmed is None else f"{text}; confirmed by new trainings: {confirmed}"


def _columns(
    status: StudyStatus, trials: Sequence[TrialRecord]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the aligned cells below each header, and the headers that may be left out, the first one first."""
    objectives = [objective.name for objective in status.objectives] or [status.objective]
    columns: dict[str, list[str]] = {
        "trial": [str(t.number) for t in trials],
        "state": [t.state for t in trials],
    }
    for name in objectives:
        columns[name] = [
            value_shown(t.value if t.values is None else t.values.get(name)) for t in trials
        ]
    if any(t.value_of for t in trials):
        columns["value of"] = [t.value_of or "last epoch" for t in trials]
    names = list(dict.fromkeys(name for t in trials for name in t.params))
    headers = parameter_headers(names, {*columns, "epochs", "attempts"})
    for header, name in zip(headers, names, strict=True):
        columns[header] = [value_shown(t.params[name]) if name in t.params else "-" for t in trials]
    columns |= {"epochs": [str(len(t.epochs)) for t in trials]}
    columns |= {"attempts": [str(len(t.attempts)) for t in trials]}
    for header, cells in columns.items():
        size = max(map(len, (header, *cells)))
        columns[header] = [cell.rjust(size) for cell in (header, *cells)]
    return columns, [*reversed(headers), "attempts", "epochs"]


def parameter_headers(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return a header for each parameter: its name, or ``params_NAME`` if the name is taken."""
    return [f"params_{name}" if name in taken else name for name in names]
