"""Common parts of all figures: choice of metrics and trials, texts, colours and Plotly.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with the common
kinds of colour blindness can distinguish. Lines also differ in dash or width, and bars in pattern,
so that a print in black and white is readable.
"""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sweeper.errors import UsageError
from sweeper.records.results import StudyResults, StudyStatus, TrialRecord
from sweeper.spec.searching import Direction, Objective
from sweeper.support.installation import install_command
from sweeper.views.formats import params_text, value_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LONGEST = 120


def as_text(text: str) -> str:
    """Return ``text`` escaped for Plotly, which reads tags and entities."""
    return html.escape(text, quote=False)


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return ``text``, shortened to ``longest`` characters with an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def trial_text(trial: TrialRecord, *lines: str, params: bool = True) -> str:
    """Return a trial's hover text: number and state, ``lines``, parameters."""
    given = [shortened(params_text({name: value})) for name, value in trial.params.items()]
    shown = given[:12] + ([f"and {len(given) - 12} more"] if len(given) > 12 else [])
    if not params:
        shown = []
    said = [f"trial {trial.number} ({trial.state})", *lines, *shown]
    return "<br>".join(as_text(line) for line in said)


def value_of(name: str, value: float | None) -> str:
    """Return ``name`` and its value in one line."""
    return f"{shortened(name)}: {value_text(value, 6)}"


def status_objectives(status: StudyStatus) -> tuple[Objective, ...]:
    """Return a study's objectives in order, one or several."""
    return status.objectives or (Objective(status.objective, status.direction),)


def objectives_of(results: StudyResults) -> tuple[Objective, ...]:
    """Return all objectives of the study, in order."""
    return status_objectives(results.status)


def chosen_metric(results: StudyResults, metric: str | None) -> str:
    """Return ``metric`` if trials reported it; by default the study's (first) objective.

    Raises:
        UsageError: No epoch has it; the message lists the existing metrics.
    """
    if metric is None:
        return objectives_of(results)[0].name
    known = dict.fromkeys(
        name for trial in results.trials for epoch in trial.epochs for name in epoch.metrics
    )
    if known and metric not in known:
        msg = (
            f"no trial of study {results.status.study!r} reported the metric {metric!r}; it has "
            f"{', '.join(map(repr, known))}"
        )
        raise UsageError(msg)
    return metric


def chosen_objective(results: StudyResults, name: str | None) -> Objective:
    """Return the study's objective of this name; by default the first one.

    Raises:
        UsageError: It has no such objective; the message lists its objectives.
    """
    objectives = objectives_of(results)
    for objective in objectives:
        if name is None or objective.name == name:
            return objective
    has = ", ".join(repr(objective.name) for objective in objectives)
    msg = f"study {results.status.study!r} has no objective {name!r}; it has {has}"
    raise UsageError(msg)


def leading(results: StudyResults) -> frozenset[int]:
    """Return the numbers of the leading trials: the best one, or the Pareto front."""
    return frozenset(trial.number for trial in results.pareto)


def leading_name(results: StudyResults) -> str:
    """Return the name of the leading trials."""
    return "Pareto front" if results.status.objectives else "best"


def objective_value(trial: TrialRecord, name: str) -> float | None:
    """Return a trial's value of one objective; None before it has one."""
    return trial.value if trial.values is None else trial.values.get(name)


def ordered(values: list[float], direction: Direction) -> list[float]:
    """Return the values, the best first."""
    return sorted(values, reverse=direction == "maximize")


BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#767676"

CROWDED = 150
"""Number of trials above which lines are thinner and without points, and bars without an edge."""

POINTS_DRAWN = 60_000
"""Total number of points above which curves are thinned out."""


@dataclass(frozen=True, slots=True)
class Look:
    """Style of one kind of line or bar.

    Attributes:
        dash: Plotly's name of a line's dash.
        width: Width of a line in pixels.
        pattern: Plotly's name of a bar's pattern; empty for none.
    """

    color: str
    dash: str = "solid"
    width: float = 1.0
    pattern: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """Return Plotly's description of the line."""
        return {"color": self.color, "dash": self.dash, "width": self.width}


def finer(look: Look) -> Look:
    """Return a thinner style for one of very many lines."""
    return replace(look, width=look.width * 0.4)


BEST = Look(BLUE, width=3.0)
STATES = {
    "complete": Look(GREY),
    "pruned": Look(ORANGE, "dot", 1.2),
    "failed": Look(VERMILLION, "dash", 1.2),
    "interrupted": Look(PURPLE, "longdash", 1.2),
    "paused": Look(SKY, "longdashdot", 1.2),
    "running": Look(GREEN, "dashdot", 1.2),
}
"""Styles of trials' curves, by state, in drawing order."""

OUTCOMES = {
    "complete": Look(GREEN),
    "pruned": Look(SKY, pattern="-"),
    "interrupted": Look(ORANGE, pattern="/"),
    "paused": Look(GREY, pattern="|"),
    "crashed": Look(VERMILLION, pattern="x"),
    "lost": Look(PURPLE, pattern="."),
    "failed": Look(BLACK, pattern="+"),
    "running": Look(BLUE, pattern="\\"),
}
"""Styles of attempts' bars, by outcome."""


def plotly() -> Any:
    """Return ``plotly.graph_objects``.

    Raises:
        UsageError: Plotly is not installed; the message contains the command that installs it.
    """
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError as error:
        msg = (
            f"figures need the package {(error.name or 'plotly').partition('.')[0]!r}, which is not "
            f"installed: {install_command('plots')}"
        )
        raise UsageError(msg) from error
    return go


def figure(traces: list[Any], title: str, *, height: int = 480, **axes: Any) -> Figure:
    """Return a figure of these traces, in the shared style.

    ``height`` is in pixels; ``axes`` are ``xaxis``, ``yaxis`` and other parts of Plotly's layout.
    """
    go = plotly()
    axis = {"showline": True, "linecolor": BLACK, "gridcolor": "#e3e3e3", "zeroline": False}
    layout = {
        "title": {"text": as_text(title), "x": 0.01, "xanchor": "left"},
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 60, "b": 95 if traces else 20},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": BLACK},
        "hoverlabel": {"align": "left"},
        "hovermode": "closest",
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        **axes,
    }
    for name in ("xaxis", "yaxis"):
        layout[name] = {**axis, "automargin": True, **axes.get(name, {})}
    return go.Figure(data=traces, layout=go.Layout(layout, template=None))


def message(title: str, text: str) -> Figure:
    """Return an empty figure with ``text`` as the reason."""
    note = {
        "text": as_text(text),
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "font": {"size": 15},
    }
    hidden = {"visible": False}
    return figure([], title, height=220, annotations=[note], xaxis=hidden, yaxis=hidden)


def add_note(drawn: Figure, text: str) -> None:
    """Add ``text`` in small letters above the plot's right corner."""
    drawn.add_annotation(
        text=as_text(text),
        showarrow=False,
        xref="paper",
        yref="paper",
        x=1,
        y=1,
        xanchor="right",
        yanchor="bottom",
        font={"size": 11, "color": "#444444"},
    )
