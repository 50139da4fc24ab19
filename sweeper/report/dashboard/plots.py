"""A study's plots as optuna-dashboard keeps them: in the database, and so of a bounded size.

Every page of optuna-dashboard's reads them whole, and a study may have a thousand trials of a
thousand epochs. So they show the leaders and the latest trials, each with as many epochs as can be
distinguished; our own pages show all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from sweeper.records.status import ranked
from sweeper.report.figures import attempts_timeline, learning_curves
from sweeper.results import StudyResults, TrialRecord

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

T = TypeVar("T")

_LEADERS = 20
_LATEST = 20
_MOST_EPOCHS = (100, 30, 10)
"""Of each trial; the first of these with which a plot is short enough."""

LONGEST = 300_000
"""Characters of one plot's JSON; a longer one is not kept."""


def saved_plots(results: StudyResults) -> Mapping[str, Figure]:
    """Return what is to be kept of a study's figures, by the name that each is saved under."""
    figures: dict[str, Callable[[StudyResults], Figure]] = {
        "learning-curves": learning_curves,
        "attempts": attempts_timeline,
    }
    chosen = _chosen(results)
    kept = {}
    for name, drawn in figures.items():
        for most in _MOST_EPOCHS:
            figure = drawn(StudyResults(results.status, tuple(_short(t, most) for t in chosen)))
            if len(figure.to_json(validate=False)) <= LONGEST:
                kept[name] = figure
                break
    return kept


def _chosen(results: StudyResults) -> tuple[TrialRecord, ...]:
    leaders = ranked(results.trials, results.status)[:_LEADERS]
    chosen = {trial.number for trial in (*leaders, *results.trials[-_LATEST:])}
    return tuple(trial for trial in results.trials if trial.number in chosen)


def _short(trial: TrialRecord, most: int) -> TrialRecord:
    return replace(trial, epochs=_spread(trial.epochs, most))


def _spread(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Return at most ``most`` of the values, evenly; the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(index * last / (most - 1))] for index in range(most))
