"""Figures show every trial, mark what matters otherwise than by colour, and stay small."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from drawn_studies import NASTY, STEPS, front, large, results, trial

from sweeper.errors import UsageError
from sweeper.search.importance import parameter_importances
from sweeper.spec.searching import Objective
from sweeper.spec.space import FloatRange
from sweeper.views.figures import (
    attempts_timeline,
    importances,
    learning_curves,
    parallel_coordinates,
)
from sweeper.views.figures.drawing import OUTCOMES, STATES

ALL = [learning_curves, attempts_timeline, parallel_coordinates, importances]


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def said(figure: Any) -> str:
    return " ".join(note.text for note in figure.layout.annotations)


def test_every_trials_curve_is_drawn_and_the_best_apart() -> None:
    drawn = traces(learning_curves(results(trial(0, [0.1, 0.2]), trial(1, [0.5, 0.9]))))
    assert list(drawn) == ["complete", "best"]
    assert (list(drawn["best"].x), list(drawn["best"].y)) == ([1, 2], [0.5, 0.9])
    assert list(drawn["complete"].y) == [0.1, 0.2]
    assert drawn["best"].line.width > drawn["complete"].line.width


def test_a_resume_is_marked_where_the_attempt_went_on() -> None:
    drawn = traces(learning_curves(results(trial(0, [0.1, 0.2, 0.4, 0.5], killed_after=2))))
    mark = drawn["resumed here"]
    assert (list(mark.x), list(mark.y)) == ([2.0], [0.2])
    assert f"attempt 2 resumes at step {2 * STEPS}" in mark.hovertext[0]
    assert "resumed here" not in traces(learning_curves(results(trial(0, [0.1, 0.2]))))


def test_nan_and_infinity_are_gaps_with_a_mark_and_bend_no_axis() -> None:
    values = [0.5, math.nan, math.inf, 0.7]
    drawn = traces(learning_curves(results(trial(0, values, state="failed"))))
    assert list(drawn["failed"].y) == [0.5, None, None, 0.7]
    assert list(drawn["NaN or infinite"].x) == [2, 3]
    assert list(drawn["NaN or infinite"].y) == [0.5, 0.5]


def test_a_metric_that_nothing_reported_is_refused_with_those_that_there_are() -> None:
    found = results(trial(0, [0.1]))
    assert traces(learning_curves(found, "loss"))
    with pytest.raises(UsageError, match=r"no trial .*'speed'; it has 'loss', 'score'"):
        learning_curves(found, "speed")


def test_a_compared_study_is_drawn_behind_under_its_name() -> None:
    other = results(trial(0, [0.3]), trial(1, [0.4]), name="other")
    drawn = learning_curves(results(trial(0, [0.1]), trial(1, [0.2])), compared=other)
    assert [t.name for t in drawn.data] == ["other: complete", "other: best", "complete", "best"]


@pytest.mark.parametrize("draw", ALL)
def test_nothing_to_draw_is_said_in_words(draw: Any) -> None:
    drawn = draw(results())
    assert not drawn.data
    assert said(drawn)


def test_among_very_many_curves_the_best_still_stands_out() -> None:
    few, many = (traces(learning_curves(large(count, 4))) for count in (40, 400))
    assert many["complete"].line.width < few["complete"].line.width
    assert many["best"].line.width == few["best"].line.width
    assert (few["complete"].mode, many["complete"].mode) == ("lines+markers", "lines")
    alone = traces(learning_curves(results(*(trial(n, [0.1 * n]) for n in range(200)))))
    assert alone["complete"].mode == "lines+markers", "a point alone is no line"


@pytest.mark.parametrize("draw", ALL)
def test_a_thousand_trials_are_few_traces_without_webgl(draw: Any) -> None:
    drawn = draw(large(1000, 20))
    assert len(drawn.data) <= 8
    assert {trace.type for trace in drawn.data} <= {"scatter", "bar"}
    assert drawn.layout.height <= 900
    assert len(drawn.to_json()) < 12_000_000


def test_too_many_points_are_thinned_out_keeping_the_last_and_saying_so() -> None:
    found = results(*(trial(n, [float(e) for e in range(1001)]) for n in range(100)))
    drawn = learning_curves(found)
    assert sum(len(trace.x) for trace in drawn.data) < 70_000
    assert "every 2th epoch" in said(drawn)
    assert max(x for x in drawn.data[0].x if x is not None) == 1001
    assert "every" not in said(learning_curves(results(trial(0, [0.1]))))


@pytest.mark.parametrize("draw", ALL)
def test_what_a_user_wrote_is_text(draw: Any) -> None:
    found = large(40, 4)
    found = replace(found, status=replace(found.status, study=NASTY, objective="score"))
    text = draw(found).to_json()
    assert "&lt;img" in text
    assert "<img" not in text.replace("\\u003c", "<")


def test_kinds_are_told_apart_without_colour() -> None:
    assert len({(look.dash, look.width) for look in STATES.values()}) == len(STATES)
    assert len({look.pattern for look in OUTCOMES.values()}) == len(OUTCOMES)
    assert len({look.color for look in OUTCOMES.values()}) == len(OUTCOMES)


def test_the_timeline_has_a_bar_an_attempt_by_outcome_and_the_pauses() -> None:
    drawn = traces(
        attempts_timeline(results(trial(0, [0.1, 0.2], killed_after=1), trial(1, [0.3])))
    )
    assert set(drawn) == {"complete", "crashed", "pause"}
    assert list(drawn["complete"].y) == [0, 1]
    assert list(drawn["crashed"].x) == [20_000]
    assert list(drawn["pause"].x)[:2] == [
        "2026-01-01 00:00:20.000000",
        "2026-01-01 00:00:35.000000",
    ]
    assert "pause" not in traces(attempts_timeline(results(trial(1, [0.3]))))


def test_a_running_attempt_ends_at_the_latest_known_moment() -> None:
    whole = trial(0, [0.1])
    running = replace(whole.attempts[0], outcome=None, ended_at=None)
    found = results(whole, replace(whole, number=1, state="running", attempts=(running,)))
    assert list(traces(attempts_timeline(found))["running"].x) == [60_000]


def test_logarithmic_parameters_have_a_logarithmic_axis_and_absent_ones_a_row() -> None:
    drawn = {"rate": FloatRange(1e-4, 1.0, log=True)}
    spread = [1e-4, 1e-2, 1.0]
    trials = [
        trial(n, [0.1 * n], params={"rate": rate}, distributions=drawn)
        for n, rate in enumerate(spread)
    ]
    other = trial(3, [0.9], params={"units": 3})
    figure = parallel_coordinates(results(*trials, other))
    places = [y for trace in figure.data for x, y in zip(trace.x, trace.y, strict=True) if x == 0]
    assert sorted(places) == pytest.approx([-0.14, 0.0, 0.5, 1.0])
    assert "rate (log)" in figure.layout.xaxis.ticktext
    plain = [replace(t, distributions={}) for t in trials]
    assert "rate" in parallel_coordinates(results(*plain)).layout.xaxis.ticktext


def test_trials_without_a_finite_value_are_left_out_and_counted() -> None:
    found = results(
        trial(0, [0.1], params={"x": 1}), trial(1, [math.inf], params={"x": 2}, value=math.inf)
    )
    assert "1 trials are left out" in said(parallel_coordinates(found))


def test_several_objectives_each_have_an_axis_and_the_front_stands_out() -> None:
    found = front((0.1, 0.9), (0.9, 0.1), (0.05, 0.05))
    drawn = parallel_coordinates(found)
    assert list(drawn.layout.xaxis.ticktext) == ["x", "score", "speed"]
    assert {"Pareto front (2)", "complete (1)"} == set(traces(drawn))
    assert set(traces(learning_curves(found))) == {"Pareto front", "complete"}
    assert "speed" in importances(found, "speed").layout.title.text
    with pytest.raises(UsageError, match="no objective 'loss'; it has 'score', 'speed'"):
        importances(found, "loss")


def test_importance_finds_the_parameter_that_matters_and_the_same_again() -> None:
    objective = Objective("score", "maximize")
    found = parameter_importances(large(120, 3).trials, objective)
    assert found.shares[0][0] == "rate"
    assert sum(share for _, share in found.shares) == pytest.approx(1)
    assert parameter_importances(large(120, 3).trials, objective) == found
    forest = parameter_importances(large(60, 3).trials, objective, method="fanova", seed=3)
    again = parameter_importances(large(60, 3).trials, objective, method="fanova", seed=3)
    assert forest == again
    assert forest.shares[0][0] == "rate"


def test_importance_says_when_there_is_too_little_to_go_by() -> None:
    few = importances(results(*(trial(n, [0.1]) for n in range(9))))
    assert "9 complete trials are too few" in said(few)
    one = FloatRange(0.0, 99.0)
    alone = [trial(n, [n], params={"x": n}, distributions={"x": one}) for n in range(20)]
    assert "only one parameter (x)" in said(importances(results(*alone)))
    with pytest.raises(UsageError, match="'ped-anova' or 'fanova'"):
        importances(results(*alone), method="guess")
