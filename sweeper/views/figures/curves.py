"""Learning curves: a metric of every trial over its epochs, with the resumes marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sweeper.records.results import StudyResults, TrialRecord
from sweeper.views.figures.drawing import (
    BEST,
    BLACK,
    CROWDED,
    POINTS_DRAWN,
    SKY,
    STATES,
    VERMILLION,
    Look,
    add_note,
    as_text,
    chosen_metric,
    figure,
    finer,
    leading,
    leading_name,
    message,
    plotly,
    shortened,
    trial_text,
    value_of,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_EVERY_TICK = 15
"""Largest number of epochs that all have a tick on the axis."""

_PARAMS_SHOWN = 200
"""Largest number of trials whose points show the parameters."""

_COMPARED = Look(SKY, "dashdot", 1.0)
_COMPARED_BEST = Look(BLACK, "dashdot", 2.5)


@dataclass
class _Line:
    """Points of one trace; ``None`` between two trials is a gap."""

    x: list[float | None] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def add(self, points: Iterable[tuple[float, float | None, str]]) -> None:
        if self.x:
            self._append(None, None, "")
        for x, y, text in points:
            self._append(x, y, text)

    def point(self, x: float, y: float, text: str) -> None:
        self._append(x, y, text)

    def _append(self, x: float | None, y: float | None, text: str) -> None:
        self.x.append(x)
        self.y.append(y)
        self.text.append(text)

    def trace(self, name: str, **options: Any) -> Any:
        return plotly().Scatter(
            x=self.x, y=self.y, hovertext=self.text, hoverinfo="text", name=as_text(name), **options
        )


def learning_curves(
    results: StudyResults, metric: str | None = None, *, compared: StudyResults | None = None
) -> Figure:
    """Draw a metric of every trial over its epochs.

    The best trial, or the Pareto front, is drawn thick; a diamond marks a resume, a cross a value
    of NaN or infinity. With more than 60,000 points in total, curves are thinned out, except for
    their last points; the figure says so.

    Args:
        results: The study's results.
        metric: A key of the epoch logs; by default the study's (first) objective.
        compared: Another study's results, drawn dash-dotted in the background.

    Raises:
        UsageError: No trial reported ``metric``, or Plotly is not installed.
    """
    plotly()
    shown = chosen_metric(results, metric)
    title = f"{shortened(shown)} by epoch, every trial of {results.status.study}"
    studies = [results] if compared is None else [compared, results]
    trials = [trial for study in studies for trial in study.trials]
    points = sum(shown in epoch.metrics for trial in trials for epoch in trial.epochs)
    step = max(1, math.ceil(points / POINTS_DRAWN))
    traces: list[Any] = []
    for study in studies:
        traces += _traces(study, shown, step, other=study is compared)
    if not traces:
        return message(title, f"no trial has finished an epoch with {shortened(shown)} yet")
    drawn = figure(
        traces,
        title,
        xaxis={
            "title": {"text": "epochs finished"},
            "rangemode": "tozero",
            "tickformat": "d",
            **({"dtick": 1} if all(len(t.epochs) <= _EVERY_TICK for t in trials) else {}),
        },
        yaxis={"title": {"text": as_text(shortened(shown, 40))}},
    )
    if step > 1:
        add_note(drawn, f"every {step}th epoch and each trial's last one are drawn")
    return drawn


def _traces(results: StudyResults, metric: str, step: int, *, other: bool) -> list[Any]:
    best = leading(results)
    prefix = f"{results.status.study}: " if other else ""
    lines = {state: _Line() for state in STATES}
    front, resumes, broken = _Line(), _Line(), _Line()
    for trial in results.trials:
        curve = _curve(trial, metric)
        if not curve:
            continue
        into = front if trial.number in best else lines.get(trial.state)
        if into is None:
            continue
        into.add(_points(trial, metric, curve, step, params=len(results.trials) <= _PARAMS_SHOWN))
        for x, y, text in _resumes(trial, curve):
            resumes.point(x, y, text)
        for x, y, text in _not_finite(trial, metric, curve):
            broken.point(x, y, text)
    crowded = len(results.trials) > CROWDED
    looks = {state: _COMPARED if other else look for state, look in STATES.items()}
    if crowded:
        looks = {state: finer(look) for state, look in looks.items()}
    traces = [
        line.trace(
            f"{prefix}{state}",
            mode="lines" if crowded and _has_lines(line) else "lines+markers",
            marker={"size": 3},
            line=looks[state].line,
        )
        for state, line in lines.items()
        if line.x
    ]
    if front.x:
        look = _COMPARED_BEST if other else BEST
        named = f"{prefix}{leading_name(results)}"
        traces.append(front.trace(named, mode="lines+markers", marker={"size": 6}, line=look.line))
    if resumes.x:
        marker = {
            "symbol": "diamond-open",
            "size": 5 if crowded else 10,
            "color": BLACK,
            "line": {"width": 1.5},
        }
        traces.append(resumes.trace(f"{prefix}resumed here", mode="markers", marker=marker))
    if broken.x:
        cross = {"symbol": "x-thin", "size": 11, "line": {"width": 2, "color": VERMILLION}}
        traces.append(broken.trace(f"{prefix}NaN or infinite", mode="markers", marker=cross))
    return traces


def _has_lines(line: _Line) -> bool:
    """Return whether any two neighbouring points exist, which a line could connect."""
    return any(a is not None and b is not None for a, b in pairwise(line.y))


def _curve(trial: TrialRecord, metric: str) -> list[tuple[int, float]]:
    """Return the epochs that reported the metric, counted from 1."""
    return [(e.epoch + 1, e.metrics[metric]) for e in trial.epochs if metric in e.metrics]


def _points(
    trial: TrialRecord,
    metric: str,
    curve: Sequence[tuple[int, float]],
    step: int,
    *,
    params: bool,
) -> Iterator[tuple[float, float | None, str]]:
    last = len(curve) - 1
    for index, (epoch, value) in enumerate(curve):
        if index % step == 0 or index == last:
            text = trial_text(trial, f"epoch {epoch}", value_of(metric, value), params=params)
            yield epoch, value if math.isfinite(value) else None, text


def _resumes(
    trial: TrialRecord, curve: Sequence[tuple[int, float]]
) -> Iterator[tuple[float, float, str]]:
    steps = steps_per_epoch(trial)
    finite = [(float(epoch), value) for epoch, value in curve if math.isfinite(value)]
    if steps is None or not finite:
        return
    for attempt in trial.attempts:
        if not attempt.start_step or attempt.number <= trial.anew_after:
            continue
        x = attempt.start_step / steps
        text = trial_text(trial, f"attempt {attempt.number} resumes at step {attempt.start_step}")
        yield x, _between(finite, x), text


def steps_per_epoch(trial: TrialRecord) -> float | None:
    """Return the steps of an epoch of the trial, from its checkpoints and attempts; None if unknown.

    If checkpoints were written within an epoch, it is the smallest number that fits all of them.
    """
    ratios = [kept.step / kept.epoch for kept in trial.checkpoints if kept.epoch]
    ends = [
        a.end_step for a in trial.attempts if a.outcome in ("complete", "pruned") and a.end_step
    ]
    if ends and trial.epochs:
        ratios.append(ends[-1] / len(trial.epochs))
    return min(ratios, default=None)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the value at ``x`` by linear interpolation; outside of the points, the nearest one's."""
    before = [point for point in points if point[0] <= x]
    after = [point for point in points if point[0] >= x]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 if x0 == x1 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _not_finite(
    trial: TrialRecord, metric: str, curve: Sequence[tuple[int, float]]
) -> Iterator[tuple[float, float, str]]:
    height = next((value for _, value in curve if math.isfinite(value)), None)
    if height is None:
        # A curve without a finite value has no height at which to draw the marks.
        return
    for epoch, value in curve:
        if math.isfinite(value):
            height = value
        else:
            yield epoch, height, trial_text(trial, f"epoch {epoch}", value_of(metric, value))
