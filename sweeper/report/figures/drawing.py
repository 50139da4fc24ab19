"""Plotly itself, what every figure shares, and the colours, dashes and patterns.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any of the
common kinds of colour blindness tell apart. None carries a meaning alone: lines differ in their dash
or width too, bars in their pattern, so that a print in black and white says the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sweeper.errors import UsageError
from sweeper.installation import install_command
from sweeper.report.figures.words import as_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#767676"

CROWDED = 150
"""Of more trials than that, lines are drawn finer and without points, bars without an edge."""

POINTS_DRAWN = 60_000
"""More than so many points of all curves together are thinned out, which the figure says."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of line or bar is drawn.

    Attributes:
        dash: Of a line: Plotly's name of it.
        width: Of a line, in pixels.
        pattern: Of a bar: Plotly's name of it; empty for a plain one.
    """

    color: str
    dash: str = "solid"
    width: float = 1.0
    pattern: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """As Plotly takes it."""
        return {"color": self.color, "dash": self.dash, "width": self.width}


def finer(look: Look) -> Look:
    """The same for one of very many lines, so that what stands out still does."""
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
"""The curves of trials, by their state; drawn in this order."""

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
"""The bars of attempts, by how they ended."""


def plotly() -> Any:
    """Return ``plotly.graph_objects``.

    Raises:
        UsageError: Plotly is not installed; the message has the command that installs it.
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
    """A figure of these traces, in the shared style.

    Args:
        traces: Plotly's.
        title: Plain text.
        height: In pixels.
        axes: ``xaxis`` and ``yaxis``, and whatever else of Plotly's layout is the figure's own.
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
    """A figure that says in words why it shows nothing."""
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
    """Write ``text`` in small letters above the plot's right corner."""
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
