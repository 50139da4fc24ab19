"""Figure of configurations: a row for each, with its repeats, their mean and the interval of the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeper.records.configurations import ConfigurationRecord
from sweeper.records.results import StudyResults
from sweeper.views.figures.drawing import BLUE, GREY, as_text, figure, plotly, shortened
from sweeper.views.formats import params_text, value_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MOST_ROWS = 40


def drawn_configurations(results: StudyResults) -> tuple[ConfigurationRecord, ...]:
    """Return the configurations that the figure shows: confirmed ones if there are any; those with a mean."""
    chosen = results.status.confirmed or results.status.configurations
    return tuple(each for each in chosen if each.mean is not None)[:_MOST_ROWS]


def configurations(results: StudyResults) -> Figure:
    """Draw the configurations by rank, the leading one above.

    Args:
        results: The study's results.
    """
    rows = drawn_configurations(results)
    go = plotly()
    points = [(value, row, each) for row, each in enumerate(rows) for value in each.values.values()]
    repeats = go.Scatter(
        mode="markers",
        name="repeat",
        x=[value for value, _, _ in points],
        y=[row for _, row, _ in points],
        text=[
            as_text(f"configuration {each.number}: {value_text(value)}")
            for value, _, each in points
        ],
        hoverinfo="text",
        marker={"color": GREY, "size": 7, "symbol": "circle-open"},
    )
    halves = [
        0.0 if each.interval is None else (each.interval[1] - each.interval[0]) / 2 for each in rows
    ]
    means = go.Scatter(
        mode="markers",
        name="mean, with its 95% interval",
        x=[each.mean for each in rows],
        y=list(range(len(rows))),
        error_x={"type": "data", "array": halves, "color": BLUE, "thickness": 2},
        text=[
            as_text(
                f"configuration {each.number}: {each.text}, {shortened(params_text(each.params))}"
            )
            for each in rows
        ],
        hoverinfo="text",
        marker={"color": BLUE, "size": 10, "symbol": "diamond"},
    )
    status = results.status
    return figure(
        [repeats, means],
        f"Configurations of {status.study}",
        height=min(200 + 36 * len(rows), 1200),
        xaxis={"title": {"text": as_text(status.objective)}},
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": [
                as_text(shortened(f"{each.number}: {params_text(each.params)}", 48))
                for each in rows
            ],
            "range": [len(rows) - 0.5, -0.5],
        },
    )
