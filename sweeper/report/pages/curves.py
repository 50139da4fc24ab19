"""A trial's curves: every metric by epoch, and a line where each attempt went on."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sweeper.report.figures.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    figure,
)
from sweeper.report.figures.words import as_text, shortened
from sweeper.report.formats import objective_first
from sweeper.report.pages.lineage import lineage
from sweeper.results import TrialRecord

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE, BLACK)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SHAPES = ("circle", "square", "diamond", "cross", "triangle-up", "x")
_FEW = 20
"""Epochs that each have a number at the axis."""


def trial_curves(trial: TrialRecord, objective: str, now: datetime) -> Figure:
    """Draw a trial's metrics at the moment ``now``; epochs are counted from 1, as finished ones are.

    The objective and its twin of the training data are shown, all others on request.
    """
    reported = dict.fromkeys((name for epoch in trial.epochs for name in epoch.metrics), 0.0)
    names = objective_first(reported, objective)
    return figure(
        [
            _curve(trial, name, index, shown=_is_alike(name, objective))
            for index, name in enumerate(names)
        ],
        f"Trial {trial.number}",
        xaxis={
            "title": {"text": "epoch"},
            "rangemode": "tozero",
            **({"dtick": 1} if len(trial.epochs) <= _FEW else {}),
        },
        yaxis={"title": {"text": as_text(shortened(objective))}},
        hovermode="x unified",
        showlegend=True,
        **_resumes(trial, now),
    )


def _is_alike(name: str, objective: str) -> bool:
    """Return whether two metrics are the same one, of the training and of the validation data."""
    return name.removeprefix("val_") == objective.removeprefix("val_")


def _curve(trial: TrialRecord, name: str, index: int, *, shown: bool) -> dict[str, Any]:
    points = [(e.epoch + 1, e.metrics[name]) for e in trial.epochs if name in e.metrics]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": as_text(shortened(name)),
        "x": [epoch for epoch, _ in points],
        "y": [value if math.isfinite(value) else None for _, value in points],
        "visible": True if shown else "legendonly",
        "line": {"color": _COLOURS[index % len(_COLOURS)], "dash": _DASHES[index % len(_DASHES)]},
        "marker": {"symbol": _SHAPES[index % len(_SHAPES)]},
    }


def _resumes(trial: TrialRecord, now: datetime) -> dict[str, Any]:
    found = [
        each for each in lineage(trial, now).attempts if each.resumes and each.begins_at is not None
    ]
    return {
        "shapes": [
            {
                "type": "line",
                "x0": each.begins_at,
                "x1": each.begins_at,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": "#444444", "dash": "dot", "width": 1.5},
            }
            for each in found
        ],
        "annotations": [
            {
                "x": each.begins_at,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "text": f"attempt {each.attempt.number} goes on at step {each.attempt.start_step}",
                "font": {"size": 12, "color": "#222222"},
            }
            for each in found
        ],
    }
