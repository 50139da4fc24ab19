"""Results as plain tables: rows for pandas, text for a terminal, HTML for a notebook.

The records print themselves by it, so it takes them as they are and does not import their module.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

from sweeper.records.status import StudyStatus, ranked

TrialRecord = Any
"""`sweeper.results.TrialRecord`, whose module imports this one."""

_TEXT_ROWS, _HTML_ROWS = 12, 30
_LONGEST_CELL = 40


def trial_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each trial, with a summary of its attempts."""
    return [
        {
            "number": t.number,
            "state": t.state,
            "value": t.value,
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


def results_text(status: StudyStatus, trials: Sequence[TrialRecord]) -> str:
    """A headline and the best trials, cut to the terminal's width."""
    width = shutil.get_terminal_size().columns
    headers, rows = _table(status, trials, _TEXT_ROWS)
    lines = [_headline(status)]
    if rows:
        sizes = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        for row in (headers, *rows):
            cells = (cell.rjust(size) for cell, size in zip(row, sizes, strict=True))
            line = "  ".join(cells)
            lines.append(line if len(line) <= width else f"{line[: width - 1]}…")
    left = len(trials) - len(rows)
    if left:
        lines.append(f"and {left} more: results.trials, or results.to_dataframe()")
    return "\n".join(lines)


def results_html(status: StudyStatus, trials: Sequence[TrialRecord]) -> str:
    """Return the results as an HTML table; text written by a user is escaped."""
    headers, rows = _table(status, trials, _HTML_ROWS)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in headers)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    left = len(trials) - len(rows)
    more = f"<p>and {left} more: <code>results.to_dataframe()</code></p>" if left else ""
    caption = f"<caption>{html.escape(_headline(status))}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _headline(status: StudyStatus) -> str:
    done = f"{status.study}: {status.finished} of {status.target} trials finished"
    if status.failed:
        done += f", {status.failed} failed"
    if status.objectives:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        return f"{done}; Pareto front: {numbers or 'none yet'}"
    if status.best is None:
        return f"{done}; no best one yet"
    return (
        f"{done}; best: trial {status.best.number} with {status.objective} "
        f"{_text(status.best.value)} ({status.direction})"
    )


def _table(
    status: StudyStatus, trials: Sequence[TrialRecord], most: int
) -> tuple[list[str], list[list[str]]]:
    chosen = ranked(trials, status)[:most]
    objectives = [objective.name for objective in status.objectives] or [status.objective]
    names = list(dict.fromkeys(name for trial in chosen for name in trial.params))
    rows = [
        [
            str(t.number),
            t.state,
            *(_text(t.value if t.values is None else t.values.get(name)) for name in objectives),
            *(_text(t.params[name]) if name in t.params else "-" for name in names),
            str(len(t.epochs)),
            str(len(t.attempts)),
        ]
        for t in chosen
    ]
    return ["trial", "state", *objectives, *names, "epochs", "attempts"], rows


def _text(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"
