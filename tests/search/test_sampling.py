"""A trial's parameters depend on the study's seed, its number and its window, and nothing else.

Distributions and values go into Optuna's form and come back the same.
"""

import itertools
import logging
import math
import random
from dataclasses import replace

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import distribution_to_json
from scripted_trials import definition, row_of
from simulation import Sweep
from small_models import Runner, regression

from sweeper.declarations.searching import Objective
from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.errors import DefinitionError, ParameterError
from sweeper.records.results import TrialRecord
from sweeper.run.study_plan import _window
from sweeper.search.importance import parameter_importances
from sweeper.search.sampling import open_search
from sweeper.search.spaces import (
    Observation,
    check_grid,
    from_internal,
    from_text,
    grid_point,
    grid_size,
    same_choice,
    to_internal,
    to_optuna,
    to_text,
)
from sweeper.search.spec import (
    SamplerSpec,
    check_sampler,
    look_back,
    sampler_seed,
    search_spec,
    search_window,
)

SPACE = {
    "rate": FloatRange(1e-4, 1e-1, log=True),
    "units": IntRange(8, 128, step=8),
    "kind": Categorical(("relu", "tanh", None)),
}
TPE = SamplerSpec("tpe", seed=3, window=8)


def draw(session):
    point = {name: session.suggest(name, SPACE[name]) for name in ("rate", "kind")}
    if point["kind"] is not None:
        point["units"] = session.suggest("units", SPACE["units"])
    return point


def observe(number, point):
    state = ("complete", "complete", "pruned", "failed")[number % 4]
    value = None if state == "failed" else float(point["rate"] or 0) + 0.01 * number % 3
    return Observation(number, state, point, {n: SPACE[n] for n in point}, value, {0: 1.0})


def test_optuna_says_nothing_of_the_study_that_is_made_for_a_trial(monkeypatch):
    messages = []
    monkeypatch.setattr(
        logging.StreamHandler, "emit", lambda _, record: messages.append(record.msg)
    )
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.create_study()
    assert messages, "the control"
    messages.clear()
    draw(open_search(SamplerSpec("random", seed=3), 0))
    assert messages == []


def test_random_draws_the_same_whatever_ran_before():
    spec = SamplerSpec("random", seed=3)
    forwards = [draw(open_search(spec, n)) for n in range(10)]
    observations = [observe(n, point) for n, point in enumerate(forwards)]
    backwards = [draw(open_search(spec, n, observations)) for n in reversed(range(10))]
    assert backwards[::-1] == forwards
    assert len({point["rate"] for point in forwards}) == 10


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_trial_interrupted_between_two_parameters_draws_the_same_when_resumed(name):
    spec = replace(TPE, name=name)
    observations = [
        observe(n, draw(open_search(SamplerSpec("random", seed=3), n))) for n in range(33)
    ]
    whole = draw(open_search(spec, 40, observations))
    interrupted = open_search(spec, 40, observations)
    first = interrupted.suggest("rate", SPACE["rate"])
    resumed = draw(open_search(spec, 40, observations))
    assert resumed == whole
    assert resumed["rate"] == first
    assert draw(open_search(replace(spec, seed=4), 40, observations)) != whole


def test_a_session_gives_the_same_value_again_and_refuses_another_distribution():
    session = open_search(TPE, 0)
    value = session.suggest("rate", FloatRange(0, 1))
    assert session.suggest("rate", FloatRange(0.0, 1.0)) == value
    with pytest.raises(ParameterError, match=r"high=1.*high=2"):
        session.suggest("rate", FloatRange(0, 2))
    session.suggest("flag", Categorical((False, True)))
    with pytest.raises(ParameterError, match="suggest it once"):
        session.suggest("flag", Categorical((0, 1)))


def test_a_kind_that_differs_between_trials_is_refused_by_name():
    observations = [Observation(0, "complete", {"x": 1}, {"x": Categorical((1, 2))}, 0.5, {})]
    session = open_search(replace(TPE, window=1), 1, observations)
    with pytest.raises(ParameterError, match="same kind in every trial"):
        session.suggest("x", IntRange(1, 3))


@pytest.mark.parametrize(
    ("before", "after", "values"),
    [
        (Categorical(("a", "b", "c")), Categorical(("b", "c", "d")), ("a", "b", "c")),
        (IntRange(1, 3), IntRange(2, 4), (1, 2, 3)),
        (FloatRange(0.0, 1.0), FloatRange(0.5, 2.0, step=0.5), (0.0, 0.5, 1.0)),
    ],
)
def test_a_sampler_uses_the_trials_within_a_changed_space(before, after, values):
    """The first trial with the new space, and those after it, leave what is bad in both."""
    outside, bad, good = values
    observations = [
        Observation(n, "complete", {"x": x}, {"x": before}, float(x != good), {})
        for n, x in enumerate([good, good, *[outside, bad] * 9])
    ]
    drawn = [open_search(replace(TPE, window=1), 20, observations).suggest("x", after)]
    observations.append(Observation(20, "complete", {"x": good}, {"x": after}, 0.0, {}))
    for seed in range(20):
        session = open_search(replace(TPE, window=1, seed=seed), 21, observations)
        drawn.append(session.suggest("x", after))
    assert drawn.count(bad) <= 2, drawn
    assert {*drawn} <= {*after.choices} if isinstance(after, Categorical) else True
    assert [o.distributions["x"] for o in observations[:20]] == [before] * 20


def test_a_window_with_a_trial_missing_is_refused():
    observations = [observe(n, {"rate": 0.01}) for n in range(5)]
    spec = replace(TPE, window=1)
    open_search(spec, 5, observations)
    with pytest.raises(ValueError, match=r"exactly the 5 trials below 5.*\[0, 1, 3, 4\]"):
        open_search(spec, 5, [o for o in observations if o.number != 2])


def test_a_users_sampler_is_made_afresh_from_the_trials_own_seed():
    seeds = []

    def factory(seed):
        seeds.append(seed)
        return optuna.samplers.RandomSampler(seed=seed)

    spec = SamplerSpec("mine", seed=3, window=4, factory=factory)
    first = draw(open_search(spec, 0))
    assert draw(open_search(spec, 0)) == first
    assert draw(open_search(spec, 1)) != first
    assert seeds == [sampler_seed(3, 0), sampler_seed(3, 0), sampler_seed(3, 1)]
    returns_none = lambda _seed: None  # noqa: E731
    with pytest.raises(DefinitionError, match="must return an optuna sampler"):
        open_search(replace(spec, factory=returns_none), 0)


def test_samplers_are_known_by_name_and_by_whether_they_look_at_results():
    windows = {name: search_window(settings_of(name)) for name in ("random", "qmc", "cmaes", "tpe")}
    assert windows == {"random": None, "qmc": None, "cmaes": 7, "tpe": 7}
    with pytest.raises(DefinitionError, match=r"use one of cmaes, gp, grid, .*, or a callable"):
        check_sampler("bayes")
    with pytest.raises(
        DefinitionError, match="'cmaes' supports one objective, and the study has 2"
    ):
        check_sampler("cmaes", objectives=2)


def test_a_sampler_whose_package_is_not_installed_is_refused_by_the_packages_name(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, package in (("gp", "torch"), ("cmaes", "cmaes")):
        with pytest.raises(DefinitionError, match=f"needs the package '{package}'.*pip install"):
            check_sampler(name)
    check_sampler("tpe")


def test_drawing_says_nothing_and_leaves_the_users_random_state_alone(caplog, capfd):
    state = random.getstate()
    with caplog.at_level(logging.INFO):
        Sweep(TPE, trials=12).run(2)
    assert random.getstate() == state
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


GRID = {"rate": [0.1, 0.01], "units": [8, 16, 32], "kind": ["relu", None]}


def test_the_grid_is_complete_in_row_major_order():
    points = [tuple(grid_point(GRID, n).values()) for n in range(grid_size(GRID))]
    assert points == list(itertools.product(*GRID.values()))
    assert list(grid_point(GRID, 5)) == ["rate", "units", "kind"]
    for beyond in (-1, 12):
        with pytest.raises(DefinitionError, match="12 points"):
            grid_point(GRID, beyond)
    check_grid(GRID, 12)
    with pytest.raises(DefinitionError, match=r"trials=13.*12 points.*set trials=12"):
        check_grid(GRID, 13)


def test_a_trial_takes_its_points_values_in_the_suggested_type():
    session = open_search(SamplerSpec("grid", seed=0, grid={"rate": [1, 2], "flag": [True]}), 1)
    value = session.suggest("rate", FloatRange(0, 2))
    assert (value, type(value)) == (2.0, float)
    assert session.suggest("flag", Categorical((False, True))) is True


@pytest.mark.parametrize(
    ("name", "distribution", "message"),
    [
        ("rate", FloatRange(0.2, 1.0), r"'rate' has the value 0\.1"),
        ("rate", IntRange(0, 1), r"'rate' has the value 0\.1"),
        ("units", IntRange(0, 100, step=3), "'units' has the value 8"),
        ("units", Categorical(("8",)), "'units' has the value 8"),
        ("kind", FloatRange(0, 1), "'kind' has the value 'relu'"),
        ("depth", IntRange(1, 2), r"only 'rate', 'units', 'kind'; add 'depth'"),
    ],
)
def test_a_value_outside_what_is_suggested_is_refused_by_name(name, distribution, message):
    session = open_search(SamplerSpec("grid", seed=0, grid=GRID), 0)
    with pytest.raises(ParameterError, match=message):
        session.suggest(name, distribution)


def settings_of(sampler="tpe", concurrency=4):
    return definition(trials=4, sampler=sampler, concurrency=concurrency).settings()


def test_a_study_keeps_its_window_as_long_as_its_concurrency():
    # The design's bound: a trial sees those up to n - concurrency.
    assert all(look_back(concurrency) >= concurrency for concurrency in (1, 2, 4, 8, 100))
    settings = settings_of()
    assert _window(settings, None) == 7
    assert _window(settings, row_of(settings, 4)) == 4, "created when trials looked back less far"
    assert _window(settings_of(concurrency=2), row_of(settings, 4)) == 3
    blind = settings_of("random")
    assert _window(blind, row_of(blind)) is None
    assert _window(settings, row_of(blind)) == 7, "the sampler is another one"
    assert search_spec(settings, window=4).window == 4


OBJECTIVE = Objective("score", "maximize")


def trials(count, *names):
    draws = random.Random(1)
    space = {name: FloatRange(0.0, 1.0) for name in names}
    drawn = [{name: draws.random() for name in names} for _ in range(count)]
    return [
        TrialRecord("s", n, "complete", p, -abs(p["a"] - 0.3), 0, None, distributions=space)
        for n, p in enumerate(drawn)
    ]


def test_the_parameter_that_matters_is_first_and_the_result_is_the_same_again():
    importances = parameter_importances(trials(60, "a", "b", "c"), OBJECTIVE)
    assert importances[0][0] == "a"
    assert importances[0][1] > 0.7
    assert math.isclose(sum(share for _, share in importances), 1)
    assert parameter_importances(trials(60, "a", "b", "c"), OBJECTIVE) == importances
    # Too few trials or parameters have none.
    assert parameter_importances(trials(9, "a", "b"), OBJECTIVE) == ()
    assert parameter_importances(trials(10, "a", "b"), OBJECTIVE) != ()
    assert parameter_importances(trials(60, "a"), OBJECTIVE) == ()


class Raising(optuna.samplers.RandomSampler):
    """Raises where it is told to: when it is made, or in one of its methods."""

    def __init__(self, where):
        super().__init__(seed=0)
        self.where = where
        self.reach("making")

    def reach(self, here):
        if here == self.where:
            raise LookupError("no table")

    def infer_relative_search_space(self, *arguments):
        self.reach("search space")
        return super().infer_relative_search_space(*arguments)

    def sample_independent(self, *arguments):
        self.reach("sample")
        return super().sample_independent(*arguments)


@pytest.mark.parametrize("where", ["making", "search space", "sample", "nowhere"])
def test_what_a_users_sampler_raises_is_named_and_blamed_on_it(where):
    def suggested():
        spec = SamplerSpec("own", seed=1, window=1, factory=lambda _seed: Raising(where))
        return open_search(spec, 0).suggest("x", FloatRange(0.0, 1.0))

    if where == "nowhere":
        assert 0 <= suggested() <= 1
        return
    with pytest.raises(ParameterError, match="the sampler raised LookupError: no table"):
        suggested()


def test_a_run_whose_sampler_raises_ends_and_says_so(tmp_path):
    def model(trial):
        trial.suggest_float("x", 0.0, 1.0)
        return regression(trial)

    message = "no trial of the study can succeed: ParameterError: the sampler raised LookupError: no table"
    with pytest.raises(DefinitionError, match=message):
        Runner(tmp_path)(model, sampler=lambda _seed: Raising("sample"), trials=2)


# Optuna's form

CHOICES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3)


@given(st.lists(CHOICES, min_size=1, max_size=6), st.data())
def test_every_choice_comes_back_in_value_and_type(choices, data):
    distribution = Categorical(tuple(choices))
    value = data.draw(st.sampled_from(choices))
    internal = to_internal("x", distribution, value)
    assert same_choice(from_internal(from_text(to_text(distribution)), internal), value)


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300), st.data())
def test_every_float_comes_back_bit_for_bit(one, other, data):
    distribution = FloatRange(min(one, other), max(one, other))
    value = data.draw(st.floats(distribution.low, distribution.high))
    internal = to_internal("x", distribution, value)
    assert from_internal(from_text(to_text(distribution)), internal) == value


@given(st.integers(-50, 50), st.integers(0, 100), st.integers(1, 9))
def test_steps_end_where_optunas_do_and_without_its_warning(low, size, step):
    distribution = to_optuna(IntRange(low, low + size, step=step))
    assert distribution == optuna.distributions.IntDistribution(
        low, low + size // step * step, step=step
    )
    assert to_optuna(from_text(distribution_to_json(distribution))) == distribution


def test_a_float_step_ends_where_optunas_does_and_types_make_two_distributions():
    with pytest.warns(UserWarning, match="not divisible"):
        expected = optuna.distributions.FloatDistribution(0.0, 1.0, step=0.3)
    assert to_optuna(FloatRange(0.0, 1.0, step=0.3)) == expected
    # Python calls these two equal.
    assert Categorical((0, 1)) == Categorical((False, True))
    assert to_text(Categorical((0, 1))) != to_text(Categorical((False, True)))
    assert to_text(FloatRange(0, 1)) == to_text(FloatRange(0.0, 1.0))


@pytest.mark.parametrize(
    ("distribution", "value"),
    [
        (FloatRange(0, 1), 1.5),
        (FloatRange(0, 1), math.nan),
        (FloatRange(0, 1), "0.5"),
        (FloatRange(0, 1), True),
        (FloatRange(0, 1, step=0.25), 0.3),
        (IntRange(0, 4), 2.5),
        (IntRange(0, 2**60), 2**53 + 1),
        (Categorical((1, 2)), True),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(distribution, value):
    with pytest.raises(ParameterError, match="'x' has the value"):
        to_internal("x", distribution, value)
