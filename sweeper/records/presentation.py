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
    headers, rows, first = _table(status, trials, most)
    lines = [_headline(status)]
    if rows:
        sizes = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        shown = list(range(len(headers)))
        # Parameters are left out before the counts of epochs and attempts, which are the last two.
        order = [*reversed(range(first, len(headers) - 2)), len(headers) - 1, len(headers) - 2]
        for column in order:
            if sum(sizes[each] + 2 for each in shown) - 2 > width:
                shown.remove(column)
        lines += [
            "  ".join(row[each].rjust(sizes[each]) for each in shown) for row in (headers, *rows)
        ]
        names = ", ".join(name for each, name in enumerate(headers) if each not in shown)
        if names:
            lines.append(f"too wide to show: {names}; results.to_dataframe() has them")
    left = len(trials) - len(rows)
    if left:
        lines.append(f"and {left} more: results.trials, or results.to_dataframe()")
    return "\n".join(lines)


def _headline(status: StudyStatus) -> str:
    return f"{status.study}: {progress_text(status)}"


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


def _table(
    status: StudyStatus, trials: Sequence[TrialRecord], most: int
) -> tuple[list[str], list[list[str]], int]:
    """Return the headers, the rows, and the number of columns before those of the parameters."""
    chosen = ranked(trials, status)[:most]
    objectives = [objective.name for objective in status.objectives] or [status.objective]
    names = list(dict.fromkeys(name for trial in chosen for name in trial.params))
    of = ["value of"] if any(t.value_of for t in chosen) else []
    first, last = ["trial", "state", *objectives, *of], ["epochs", "attempts"]
    rows = [
        [
            str(t.number),
            t.state,
            *(
                value_shown(t.value if t.values is None else t.values.get(name))
                for name in objectives
            ),
            *((t.value_of or "last epoch") for _ in of),
            *(value_shown(t.params[name]) if name in t.params else "-" for name in names),
            str(len(t.epochs)),
            str(len(t.attempts)),
        ]
        for t in chosen
    ]
    return [*first, *parameter_headers(names, {*first, *last}), *last], rows, len(first)


def parameter_headers(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return a header for each parameter: its name, or ``params_NAME`` if the name is taken."""
    return [f"params_{name}" if name in taken else name for name in names]
