"""Presentation of results: plain tables for pandas, a terminal and a notebook, and figures.

The module of the records imports this one to print them, so their types are not imported here. The
object that draws figures is set by the caller that returns results to the user.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sweeper.errors import UsageError
from sweeper.records.configurations import ConfigurationRecord, leader_sentence
from sweeper.records.printing import json_fields, value_shown
from sweeper.records.status import StudyStatus, ranked

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


TrialRecord = Any
"""Type `sweeper.records.results.TrialRecord`, whose module imports this one."""

_TEXT_ROWS, _CELL_ROWS, _CELL_WIDTH = 12, 30, 200


def trial_rows(trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return one row for each trial, with a summary of its attempts."""
    return [
        {
            "number": t.number,
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
    headers, rows = _table(status, trials, most)
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


def _headline(status: StudyStatus) -> str:
    done = f"{status.study}: {status.finished} of {status.target} trials finished"
    if status.failed:
        done += f", {status.failed} failed"
    if status.objectives:
        numbers = ", ".join(str(trial.number) for trial in status.pareto)
        return f"{done}; Pareto front: {numbers or 'none yet'}"
    if status.best is None:
        return f"{done}; no best trial yet"
    if status.configurations:
        return f"{done}; {leader_sentence(status.configurations)}"
    return (
        f"{done}; best: trial {status.best.number} with {status.objective} "
        f"{value_shown(status.best.value)} ({status.direction})"
    )


def _table(
    status: StudyStatus, trials: Sequence[TrialRecord], most: int
) -> tuple[list[str], list[list[str]]]:
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
    return [*first, *parameter_headers(names, {*first, *last}), *last], rows


def parameter_headers(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return a header for each parameter: its name, or ``params_NAME`` if the name is taken."""
    return [f"params_{name}" if name in taken else name for name in names]


class FigureSource(Protocol):
    """Interface of an object that draws results; see `sweeper.views.figures`."""

    def learning_curves(self, results: Any, metric: str | None, *, compared: Any) -> Figure:
        """Draw a metric of every trial over its epochs."""

    def parallel_coordinates(self, results: Any) -> Figure:
        """Draw every trial over its parameters."""

    def importances(
        self,
        results: Any,
        objective: str | None,
        *,
        method: Literal["ped-anova", "fanova"],
        seed: int,
    ) -> Figure:
        """Draw the importance of each parameter."""

    def attempts_timeline(self, results: Any) -> Figure:
        """Draw the attempts of every trial over time."""


class HasFigures:
    """Base class of results that can be drawn if they are from a study."""

    status: StudyStatus
    figures: FigureSource | None

    def plot_learning_curves(
        self, metric: str | None = None, *, compared: HasFigures | None = None
    ) -> Figure:
        """Draw a metric of every trial over its epochs, with resumes marked, as a Plotly figure.

        Args:
            metric: A key of the epoch logs; the (first) objective by default.
            compared: Another study's results, drawn in the background; none by default.

        Raises:
            UsageError: No trial reported ``metric``, or Plotly is not installed.
        """
        return self._figures().learning_curves(self, metric, compared=compared)

    def plot_parallel_coordinates(self) -> Figure:
        """Draw every trial as a line over its parameters to its objectives, as a Plotly figure.

        Raises:
            UsageError: Plotly is not installed.
        """
        return self._figures().parallel_coordinates(self)

    def plot_importances(
        self,
        objective: str | None = None,
        *,
        method: Literal["ped-anova", "fanova"] = "ped-anova",
        seed: int = 0,
    ) -> Figure:
        """Draw how much each parameter matters, as a Plotly figure; it takes 10 complete trials.

        Args:
            objective: One of the study's objectives; the first one by default.
            method: Optuna's evaluator; ``"fanova"`` needs scikit-learn.
            seed: Seed of fANOVA; 0 by default.

        Raises:
            UsageError: No such objective or method, or a package is not installed.
        """
        return self._figures().importances(self, objective, method=method, seed=seed)

    def plot_attempts(self) -> Figure:
        """Draw every trial's attempts over time, with how each ended, as a Plotly figure.

        Raises:
            UsageError: Plotly is not installed.
        """
        return self._figures().attempts_timeline(self)

    def _figures(self) -> FigureSource:
        if self.figures is None:
            msg = (
                f"these results of study {self.status.study!r} were not read from a study, so "
                "they cannot be drawn; use those of Study.run, Study.results or "
                "load_study(name).results()"
            )
            raise UsageError(msg)
        return self.figures
