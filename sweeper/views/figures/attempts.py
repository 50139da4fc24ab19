"""Timeline of attempts: start, end and outcome of each, and the pauses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sweeper.records.results import AttemptRecord, StudyResults, TrialRecord
from sweeper.support.shown import shown_text
from sweeper.views.figures.drawing import (
    CROWDED,
    GREY,
    OUTCOMES,
    as_text,
    figure,
    message,
    plotly,
    shortened,
    trial_text,
)
from sweeper.views.formats import last_line, time_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_ROW = 22
_SMALLEST, _LARGEST = 240, 900


def attempts_timeline(results: StudyResults, *, now: datetime | None = None) -> Figure:
    """Draw each trial's attempts as bars in one row, with a dotted line for each pause.

    A bar's colour and pattern show the attempt's outcome. Times are UTC.

    Args:
        results: The study's results.
        now: End of the bars of running attempts; by default the latest time in the results.

    Raises:
        UsageError: Plotly is not installed.
    """
    go = plotly()
    title = f"Attempts of {results.status.study}"
    pairs = [(trial, attempt) for trial in results.trials for attempt in trial.attempts]
    if not pairs:
        return message(title, "no trial has begun yet")
    until = now or max(a.ended_at or a.started_at for _, a in pairs)
    traces: list[Any] = []
    for outcome, look in OUTCOMES.items():
        chosen = [pair for pair in pairs if (pair[1].outcome or "running") == outcome]
        if not chosen:
            continue
        traces.append(
            go.Bar(
                orientation="h",
                width=0.75,
                name=outcome,
                y=[trial.number for trial, _ in chosen],
                base=[_moment(attempt.started_at) for _, attempt in chosen],
                x=[_seconds(attempt, until) * 1000 for _, attempt in chosen],
                marker={
                    "color": look.color,
                    "line": {
                        "color": "white",
                        "width": 0.5 if len(results.trials) <= CROWDED else 0,
                    },
                    "pattern": {"shape": look.pattern, "fgcolor": "white", "size": 6},
                },
                hovertext=[_text(trial, attempt, until) for trial, attempt in chosen],
                hoverinfo="text",
            )
        )
    pauses = [pause for trial in results.trials for pause in _pauses(trial)]
    if pauses:
        traces.append(_pause_lines(pauses))
    numbers = [trial.number for trial, _ in pairs]
    first, last = min(numbers), max(numbers)
    return figure(
        traces,
        title,
        height=min(max(140 + _ROW * (last - first + 1), _SMALLEST), _LARGEST),
        barmode="overlay",
        xaxis={"type": "date", "title": {"text": "time (UTC)"}},
        yaxis={
            "title": {"text": "trial"},
            "range": [last + 0.6, first - 0.6],
            "tickformat": "d",
            **({"dtick": 1} if last - first < 30 else {}),
        },
    )


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _seconds(attempt: AttemptRecord, until: datetime) -> float:
    return max(((attempt.ended_at or until) - attempt.started_at).total_seconds(), 0.001)


def _text(trial: TrialRecord, attempt: AttemptRecord, until: datetime) -> str:
    steps = f"from step {attempt.start_step or 0}"
    if attempt.end_step is not None:
        steps += f" to {attempt.end_step}"
    lines = [
        f"attempt {attempt.number}: {attempt.outcome or 'running'}",
        steps,
        f"{time_text(_seconds(attempt, until))} on {shortened(attempt.host)}",
    ]
    if attempt.error:
        lines.append(shortened(shown_text(last_line(attempt.error))))
    return trial_text(trial, *lines)


def _pauses(trial: TrialRecord) -> Iterator[tuple[TrialRecord, datetime, datetime, int]]:
    for earlier, later in zip(trial.attempts, trial.attempts[1:], strict=False):
        if earlier.ended_at is not None and later.started_at > earlier.ended_at:
            yield trial, earlier.ended_at, later.started_at, later.number


def _pause_lines(pauses: list[tuple[TrialRecord, datetime, datetime, int]]) -> Any:
    x: list[str | None] = []
    y: list[int | None] = []
    texts: list[str] = []
    for trial, begins, ends, attempt in pauses:
        took = time_text((ends - begins).total_seconds())
        text = trial_text(trial, f"{took} until attempt {attempt} began")
        x += [_moment(begins), _moment(ends), None]
        y += [trial.number, trial.number, None]
        texts += [text, text, ""]
    return plotly().Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": GREY, "dash": "dot", "width": 2},
        name=as_text("pause"),
        hovertext=texts,
        hoverinfo="text",
    )
