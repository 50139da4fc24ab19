"""Figures of parameters: parallel coordinates, and importances for an objective.

Parallel coordinates are drawn with plain lines, because Plotly's trace of this name needs WebGL,
distinguishes lines only by colour, and drops trials without a parameter, which are common with
conditional ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeper.records.results import StudyResults, TrialRecord
from sweeper.search.importance import Importances, Method, parameter_importances
from sweeper.spec.space import Categorical, CategoricalChoice
from sweeper.views.figures.drawing import (
    BEST,
    BLACK,
    BLUE,
    CROWDED,
    GREY,
    ORANGE,
    SKY,
    Look,
    add_note,
    as_text,
    chosen_objective,
    figure,
    finer,
    leading,
    leading_name,
    message,
    objective_value,
    objectives_of,
    ordered,
    plotly,
    shortened,
    trial_text,
    value_of,
)
from sweeper.views.formats import value_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LOWER, _UPPER, _ABSENT = 0.0, 1.0, -0.14
_TICKS = 5
_MOST_CHOICES = 12
_TOP = Look(BLUE, "dash", 1.6)
_REST = Look(SKY, "solid", 0.8)
_PRUNED = Look(ORANGE, "dot", 0.9)


@dataclass(frozen=True)
class _Axis:
    """One vertical axis.

    Attributes:
        position: Position of a trial's line, from 0 to 1; None without a value.
        ticks: Positions and their labels.
    """

    name: str
    position: Callable[[TrialRecord], float | None]
    ticks: Sequence[tuple[float, str]]


def parallel_coordinates(results: StudyResults) -> Figure:
    """Draw every trial that has a value as a line over its parameters and objectives.

    A parameter with a logarithmic range has a logarithmic axis. The line of a trial without a
    parameter goes through a row below the axes. The best trial (or the Pareto front), the best
    tenth, the others and pruned ones are drawn differently.

    Args:
        results: The study's results.

    Raises:
        UsageError: Plotly is not installed.
    """
    go = plotly()
    title = f"Parameters and objective of every trial of {results.status.study}"
    objectives = objectives_of(results)
    values = {t.number: [objective_value(t, o.name) for o in objectives] for t in results.trials}
    trials = [
        t
        for t in results.trials
        if all(value is not None and math.isfinite(value) for value in values[t.number])
    ]
    left_out = sum(t.state in ("complete", "pruned") for t in results.trials) - len(trials)
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    if not trials or not names:
        said = "no trial has a value yet" if not trials else "the trials have no parameters"
        return message(title, said)
    axes = [_parameter_axis(name, trials) for name in names]
    axes += [_objective_axis(objective.name, trials) for objective in objectives]
    traces: list[Any] = []
    for name, look, members in _groups(results, trials):
        x: list[float | None] = []
        y: list[float | None] = []
        texts: list[str] = []
        for trial in members:
            lines = [value_of(o.name, objective_value(trial, o.name)) for o in objectives]
            positions = [axis.position(trial) for axis in axes]
            x += [*range(len(axes)), None]
            y += [*(_ABSENT if position is None else position for position in positions), None]
            texts += [trial_text(trial, *lines)] * (len(axes) + 1)
        traces.append(
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line=(finer(look) if len(members) > CROWDED else look).line,
                name=f"{name} ({len(members)})",
                hovertext=texts,
                hoverinfo="text",
            )
        )
    drawn = figure(
        traces,
        title,
        height=520,
        xaxis={
            "tickvals": list(range(len(axes))),
            "ticktext": [as_text(shortened(axis.name, 28)) for axis in axes],
            "side": "bottom",
            "showgrid": False,
            "showline": False,
            "range": [-0.15, len(axes) - 0.55],
        },
        yaxis={"visible": False, "range": [_ABSENT - 0.06, 1.06]},
    )
    _draw_axes(drawn, axes)
    if any(axis.position(trial) is None for axis in axes for trial in trials):
        note = {"x": 0, "y": _ABSENT, "text": "absent", "showarrow": False, "xanchor": "right"}
        drawn.add_annotation(**note, font={"size": 11, "color": "#444444"})
    if left_out > 0:
        add_note(drawn, f"{left_out} trials are left out: their value is not finite or missing")
    return drawn


def _groups(
    results: StudyResults, trials: Sequence[TrialRecord]
) -> list[tuple[str, Look, list[TrialRecord]]]:
    """Return the groups of trials in drawing order, the most important last."""
    best = leading(results)
    first = objectives_of(results)[0]
    complete = [t for t in trials if t.state == "complete"]
    ranks = ordered([t.value for t in complete if t.value is not None], first.direction)
    bound = ranks[max(math.ceil(len(ranks) / 10) - 1, 0)] if ranks else math.nan

    def among_the_best(trial: TrialRecord) -> bool:
        value = trial.value if trial.value is not None else math.nan
        return value >= bound if first.direction == "maximize" else value <= bound

    rest: list[TrialRecord] = []
    top: list[TrialRecord] = []
    for trial in complete:
        if trial.number not in best:
            is_top = not results.status.objectives and among_the_best(trial)
            (top if is_top else rest).append(trial)
    groups = [
        ("pruned and others", _PRUNED, [t for t in trials if t.state != "complete"]),
        ("complete", _REST, rest),
        ("best tenth", _TOP, top),
        (leading_name(results), BEST, [t for t in complete if t.number in best]),
    ]
    return [group for group in groups if group[2]]


def _parameter_axis(name: str, trials: Sequence[TrialRecord]) -> _Axis:
    present = [trial for trial in trials if name in trial.params]
    found = [trial.distributions.get(name) for trial in present]
    numbers = [_number(trial.params[name]) for trial in present]
    if any(isinstance(d, Categorical) for d in found) or any(n is None for n in numbers):
        return _choices_axis(name, present)
    finite = [number for number in numbers if number is not None]
    log = any(getattr(d, "log", False) for d in found) and min(finite) > 0

    def number_of(trial: TrialRecord) -> float | None:
        return _number(trial.params[name]) if name in trial.params else None

    shown = f"{name} (log)" if log else name
    return _number_axis(shown, number_of, finite, log=log)


def _objective_axis(name: str, trials: Sequence[TrialRecord]) -> _Axis:
    def value(trial: TrialRecord) -> float | None:
        return objective_value(trial, name)

    known = [found for trial in trials if (found := value(trial)) is not None]
    return _number_axis(name, value, known, log=False)


def _number_axis(
    name: str,
    value: Callable[[TrialRecord], float | None],
    known: Sequence[float],
    *,
    log: bool,
) -> _Axis:
    low, high = min(known), max(known)
    ends = (math.log(low), math.log(high)) if log else (low, high)

    def at(number: float) -> float:
        if ends[0] == ends[1]:
            return 0.5
        found = (math.log(number) if log else number) - ends[0]
        return found / (ends[1] - ends[0])

    def position(trial: TrialRecord) -> float | None:
        number = value(trial)
        return None if number is None else at(number)

    if low == high:
        return _Axis(name, position, [(0.5, value_text(low, 4))])
    parts = [i / (_TICKS - 1) for i in range(_TICKS)]
    between = [ends[0] + part * (ends[1] - ends[0]) for part in parts]
    written = [value_text(math.exp(n) if log else n, 4) for n in between]
    return _Axis(name, position, list(zip(parts, written, strict=True)))


def _choices_axis(name: str, trials: Sequence[TrialRecord]) -> _Axis:
    choices: list[CategoricalChoice] = []
    for trial in trials:
        known = trial.distributions.get(name)
        offered = known.choices if isinstance(known, Categorical) else (trial.params[name],)
        for choice in offered:
            if not any(_same(choice, other) for other in choices):
                choices.append(choice)
    spread = max(len(choices) - 1, 1)
    positions = [i / spread if len(choices) > 1 else 0.5 for i in range(len(choices))]

    def position(trial: TrialRecord) -> float | None:
        if name not in trial.params:
            return None
        value = trial.params[name]
        return next(p for p, c in zip(positions, choices, strict=True) if _same(c, value))

    every = max(1, math.ceil(len(choices) / _MOST_CHOICES))
    ticks = [
        (p, shortened(str(c), 20))
        for i, (p, c) in enumerate(zip(positions, choices, strict=True))
        if i % every == 0
    ]
    return _Axis(name, position, ticks)


def _draw_axes(drawn: Figure, axes: Sequence[_Axis]) -> None:
    lines = [
        {"type": "line", "x0": i, "x1": i, "y0": _LOWER, "y1": _UPPER, "line": {"color": BLACK}}
        for i in range(len(axes))
    ]
    ticks = [
        {
            "x": i,
            "y": at,
            "text": as_text(text),
            "showarrow": False,
            "xanchor": "left",
            "xshift": 4,
            "bgcolor": "rgba(255,255,255,0.75)",
            "font": {"size": 11, "color": BLACK},
        }
        for i, axis in enumerate(axes)
        for at, text in axis.ticks
    ]
    drawn.update_layout(shapes=lines, annotations=ticks)
    drawn.add_shape(
        type="line", x0=0, x1=len(axes) - 1, y0=_ABSENT, y1=_ABSENT,
        line={"color": GREY, "dash": "dot", "width": 0.5},
    )  # fmt: skip


def _number(value: CategoricalChoice) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _same(one: CategoricalChoice, other: CategoricalChoice) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124


def importances(
    results: StudyResults,
    objective: str | None = None,
    *,
    method: Method = "ped-anova",
    seed: int = 0,
) -> Figure:
    """Draw each parameter's importance for an objective.

    With fewer than 10 complete trials, or only one parameter, the figure says so instead.

    Args:
        results: The study's results.
        objective: One of the study's objectives; the first one by default.
        method: Optuna's evaluator: ``"ped-anova"`` (Watanabe et al., 2023) gives the importance for
            being among the best trials, and is deterministic; ``"fanova"`` (Hutter et al., 2014)
            needs scikit-learn.
        seed: Seed of fANOVA.

    Raises:
        UsageError: No such objective or method, or a package is not installed.
    """
    plotly()
    chosen = chosen_objective(results, objective)
    found = parameter_importances(results.trials, chosen, method=method, seed=seed)
    return draw_importances(found, results.status.study)


def draw_importances(found: Importances, study: str) -> Figure:
    """Draw the importances; see `importances`."""
    go = plotly()
    title = f"What {shortened(found.objective.name)} depends on, in {study}"
    if found.why_not is not None:
        return message(title, found.why_not)
    names = [as_text(shortened(name, 40)) for name, _ in found.shares]
    shares = [share for _, share in found.shares]
    bars = go.Bar(
        orientation="h",
        x=shares,
        y=list(range(len(names))),
        text=[f"{share:.0%}" for share in shares],
        textposition="auto",
        marker={"color": BLUE},
        hoverinfo="none",
        showlegend=False,
    )
    drawn = figure(
        [bars],
        title,
        height=min(160 + 32 * len(names), 900),
        xaxis={"title": {"text": "share"}, "tickformat": ".0%", "rangemode": "tozero"},
        yaxis={
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "range": [len(names) - 0.5, -0.5],
        },
    )
    complete = f"{found.trials} complete trials"
    note = f"fANOVA over {complete}"
    if found.best_share is not None:
        note = f"to be among the best {found.best_share:.0%} of {complete} (PED-ANOVA)"
    add_note(drawn, note)
    return drawn
