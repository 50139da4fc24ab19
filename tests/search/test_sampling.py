"""A trial's parameters depend on the study's seed, its number and its window, and nothing else."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest
from simulation import Sweep

from sweeper.errors import DefinitionError, ParameterError
from sweeper.search.sampling import SearchSession, open_search
from sweeper.search.spaces import Observation
from sweeper.search.spec import SamplerSpec, check_sampler, looks_at_results, sampler_seed
from sweeper.spec.space import Categorical, CategoricalChoice, Distribution, FloatRange, IntRange

SPACE: dict[str, Distribution] = {
    "rate": FloatRange(1e-4, 1e-1, log=True),
    "units": IntRange(8, 128, step=8),
    "kind": Categorical(("relu", "tanh", None)),
}
TPE = SamplerSpec("tpe", seed=3, window=8)
Point = dict[str, CategoricalChoice]


def draw(session: SearchSession) -> Point:
    point = {name: session.suggest(name, SPACE[name]) for name in ("rate", "kind")}
    if point["kind"] is not None:
        point["units"] = session.suggest("units", SPACE["units"])
    return point


def observe(number: int, point: Point) -> Observation:
    state: Any = ("complete", "complete", "pruned", "failed")[number % 4]
    value = None if state == "failed" else float(point["rate"] or 0) + 0.01 * number % 3
    return Observation(number, state, point, {n: SPACE[n] for n in point}, value, {0: 1.0})


def test_random_draws_the_same_whatever_ran_before() -> None:
    spec = SamplerSpec("random", seed=3)
    forwards = [draw(open_search(spec, n)) for n in range(10)]
    seen = [observe(n, point) for n, point in enumerate(forwards)]
    backwards = [draw(open_search(spec, n, seen)) for n in reversed(range(10))]
    assert backwards[::-1] == forwards
    assert len({point["rate"] for point in forwards}) == 10


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_trial_interrupted_between_two_parameters_draws_the_same_when_resumed(name: str) -> None:
    spec = replace(TPE, name=name)
    seen = [observe(n, draw(open_search(SamplerSpec("random", seed=3), n))) for n in range(33)]
    whole = draw(open_search(spec, 40, seen))
    interrupted = open_search(spec, 40, seen)
    first = interrupted.suggest("rate", SPACE["rate"])
    resumed = draw(open_search(spec, 40, seen))
    assert resumed == whole
    assert resumed["rate"] == first
    assert draw(open_search(replace(spec, seed=4), 40, seen)) != whole


def test_a_session_gives_the_same_value_again_and_refuses_another_distribution() -> None:
    session = open_search(TPE, 0)
    value = session.suggest("rate", FloatRange(0, 1))
    assert session.suggest("rate", FloatRange(0.0, 1.0)) == value
    with pytest.raises(ParameterError, match=r"high=1.*high=2"):
        session.suggest("rate", FloatRange(0, 2))
    session.suggest("flag", Categorical((False, True)))
    with pytest.raises(ParameterError, match="suggest it once"):
        session.suggest("flag", Categorical((0, 1)))


def test_choices_that_differ_between_trials_are_refused_by_name() -> None:
    seen = [Observation(0, "complete", {"x": 1}, {"x": Categorical((1, 2))}, 0.5, {})]
    session = open_search(replace(TPE, window=1), 1, seen)
    with pytest.raises(ParameterError, match="same kind and choices in every trial"):
        session.suggest("x", Categorical((1, 2, 3)))


def test_a_window_with_a_trial_missing_is_refused() -> None:
    seen = [observe(n, {"rate": 0.01}) for n in range(5)]
    spec = replace(TPE, window=1)
    open_search(spec, 5, seen)
    with pytest.raises(ValueError, match=r"exactly the 5 trials below 5.*\[0, 1, 3, 4\]"):
        open_search(spec, 5, [o for o in seen if o.number != 2])
    with pytest.raises(DefinitionError, match="and it is None"):
        open_search(replace(TPE, window=None), 0)


def test_a_users_sampler_is_made_afresh_from_the_trials_own_seed() -> None:
    seeds: list[int] = []

    def factory(seed: int) -> optuna.samplers.BaseSampler:
        seeds.append(seed)
        return optuna.samplers.RandomSampler(seed=seed)

    spec = SamplerSpec("mine", seed=3, window=4, factory=factory)
    first = draw(open_search(spec, 0))
    assert draw(open_search(spec, 0)) == first
    assert draw(open_search(spec, 1)) != first
    assert seeds == [sampler_seed(3, 0), sampler_seed(3, 0), sampler_seed(3, 1)]
    returns_none: Callable[[int], Any] = lambda _seed: None  # noqa: E731
    with pytest.raises(DefinitionError, match="must return an optuna sampler"):
        open_search(replace(spec, factory=returns_none), 0)


def test_samplers_are_known_by_name_and_by_whether_they_look_at_results() -> None:
    assert {n: looks_at_results(n) for n in ("random", "grid", "qmc", "cmaes", "tpe")} == {
        "random": False,
        "grid": False,
        "qmc": False,
        "cmaes": True,
        "tpe": True,
    }
    with pytest.raises(DefinitionError, match=r"use one of cmaes, gp, grid, .*, or a callable"):
        looks_at_results("bayes")
    with pytest.raises(
        DefinitionError, match="'cmaes' supports one objective, and the study has 2"
    ):
        check_sampler("cmaes", objectives=2)


def test_a_sampler_whose_package_is_not_installed_is_refused_by_the_packages_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, package in (("gp", "torch"), ("cmaes", "cmaes")):
        with pytest.raises(DefinitionError, match=f"needs the package '{package}'.*pip install"):
            check_sampler(name)
    looks_at_results("tpe")


def test_drawing_says_nothing_and_leaves_the_users_random_state_alone(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    state = random.getstate()
    with caplog.at_level(logging.INFO):
        Sweep(TPE, trials=12).run(2)
    assert random.getstate() == state
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
