"""Every sampler gives the same sweep on any number of workers, in flat and conditional spaces."""

from dataclasses import replace

import numpy as np
import pytest
from optuna import samplers
from simulation import BRANCHES, FLAT, Sweep, branching, flat, small

from sweeper.declarations.space import Categorical, FloatRange, IntRange
from sweeper.errors import ParameterError
from sweeper.search.sampling import ReplayedAttributes, open_search
from sweeper.search.spec import SamplerSpec


class Remembering(samplers.RandomSampler):
    """A user's own, which writes an attribute to each trial and reads those of earlier ones."""

    def infer_relative_search_space(self, study, trial):
        attributes = [
            t.system_attrs.get("mark", 0) for t in study.get_trials() if t.state.is_finished()
        ]
        study._storage.set_trial_system_attr(trial._trial_id, "mark", sum(attributes) % 7 + 1)
        self._shift = sum(attributes)
        return {}

    def sample_independent(self, study, trial, name, distribution):
        if getattr(self, "_shift", 0) % 2:
            super().sample_independent(study, trial, name, distribution)
        return super().sample_independent(study, trial, name, distribution)


FACTORIES = {
    "nsga2": lambda seed: samplers.NSGAIISampler(seed=seed, population_size=4),
    "nsga3": lambda seed: samplers.NSGAIIISampler(seed=seed, population_size=4),
    "qmc of Optuna": lambda seed: samplers.QMCSampler(
        seed=7, independent_sampler=samplers.RandomSampler(seed=seed)
    ),
    "partly fixed": lambda seed: samplers.PartialFixedSampler(
        fixed_params={"units": 16}, base_sampler=samplers.CmaEsSampler(seed=seed)
    ),
    "tpe in groups": lambda seed: samplers.TPESampler(seed=seed, multivariate=True, group=True),
    "a user's own": Remembering,
}
NAMED = ("tpe", "random", "qmc", "cmaes")


def spec_of(sampler):
    blind = sampler in ("random", "qmc")
    if sampler in NAMED or sampler == "gp":
        return SamplerSpec(sampler, seed=3, window=None if blind else 4)
    return SamplerSpec(sampler, seed=3, window=4, factory=FACTORIES[sampler])


pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


BY_REQUEST = {
    *(("nsga3", space) for space in (flat, branching)),  # by default: nsga2
    *(("gp", space) for space in (flat, branching)),  # it imports torch
    ("tpe in groups", flat),  # which is for branches
    *((sampler, flat) for sampler in ("random", "qmc", "nsga2", "a user's own")),
    ("qmc of Optuna", branching),
    ("partly fixed", branching),
}
SWEEPS = [
    pytest.param(sampler, space, marks=pytest.mark.whole if (sampler, space) in BY_REQUEST else ())
    for sampler in (*NAMED, "gp", *FACTORIES)
    for space in (flat, branching)
]


@pytest.mark.parametrize(("sampler", "space"), SWEEPS)
def test_a_sampler_draws_the_same_sweep_on_any_number_of_workers(sampler, space):
    if sampler == "gp":
        pytest.importorskip("torch", reason="it needs torch: pip install 'sweeper-keras[gp]'")
    sweep = Sweep(spec_of(sampler), trials=24, space=space)
    alone = sweep.run(1)
    assert sweep.run(4, seed=1) == alone
    assert replace(sweep, spec=replace(sweep.spec, seed=4)).run(1) != alone
    assert len({repr(o.params) for o in alone}) > 12
    if space is branching:
        drawn = {name for o in alone for name in o.params}
        assert drawn == set(BRANCHES), "else a conditional space would show nothing"


@pytest.mark.parametrize("sampler", ["cmaes", "nsga2", "partly fixed", "a user's own"])
def test_a_worker_that_joins_late_works_out_what_earlier_trials_had_left_on_them(sampler):
    sweep = Sweep(spec_of(sampler), trials=16)
    assert replace(sweep, newcomers=True).run(2) == sweep.run(1)


@pytest.mark.whole
@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsga2", "a user's own"])
def test_without_the_window_the_sweep_depends_on_who_finished_first(sampler):
    """The control of the two tests above."""
    sweep = Sweep(spec_of(sampler), trials=24, blind=True)
    assert sweep.run(1) != sweep.run(4)


def test_without_the_attributes_cma_es_never_leaves_its_first_generation(monkeypatch):
    """The control of the attributes: with them a later generation is drawn from what was learned."""
    sweep = Sweep(spec_of("cmaes"), trials=24)
    learned = sweep.run(1)
    monkeypatch.setattr("sweeper.search.sampling._sampler_leaves_attributes", lambda spec: False)
    assert sweep.run(1) != learned


def test_brute_force_visits_every_point_once_on_any_number_of_workers_that_wait():
    spec = SamplerSpec(
        "own", seed=3, window=1, factory=lambda s: samplers.BruteForceSampler(seed=s)
    )
    sweep = Sweep(spec, trials=12, space=small)
    points = [tuple(o.params.values()) for o in sweep.run(1)]
    assert len(set(points)) == 12
    wide = replace(sweep, spec=replace(sweep.spec, window=4))
    assert wide.run(1) == wide.run(4)


@pytest.mark.parametrize(
    "sampler",
    [
        "tpe",
        "nsga2",
        *(pytest.param(n, marks=pytest.mark.whole) for n in ("nsga3", "qmc", "random")),
    ],
)
def test_a_study_of_two_objectives_is_the_same_sweep_on_any_number_of_workers(sampler):
    spec = replace(spec_of(sampler), further_directions=("maximize",))
    sweep = Sweep(spec, trials=24, objectives=2, space=branching)
    assert sweep.run(4) == sweep.run(1)


def sobol_points(trials, seed=3):
    spec = SamplerSpec("qmc", seed=seed)
    square = {"x": FloatRange(0, 1), "y": FloatRange(0, 1)}
    return np.array(
        [
            [float(session.suggest(n, d) or 0) for n, d in square.items()]
            for session in (open_search(spec, number) for number in range(trials))
        ]
    )


def test_qmc_gives_each_trial_the_point_of_its_number_and_fills_the_square_evenly():
    points = sobol_points(64)
    cells = {(int(8 * x), int(8 * y)) for x, y in points}
    assert len(cells) == 64, "64 points of a Sobol sequence fall into 64 different cells"
    assert not np.array_equal(sobol_points(4, seed=4), points[:4])
    chance = np.random.default_rng(0).uniform(size=(64, 2))
    assert len({(int(8 * x), int(8 * y)) for x, y in chance}) < 60
    spec = SamplerSpec("qmc", seed=3)
    kinds = Categorical(("a", "b", "c", None))
    drawn = [open_search(spec, n).suggest("kind", kinds) for n in range(64)]
    assert {drawn.count(kind) for kind in kinds.choices} == {16}
    depths = [open_search(spec, n).suggest("depth", IntRange(1, 4)) for n in range(64)]
    assert {depths.count(depth) for depth in range(1, 5)} == {16}
    # More parameters than the sequence has coordinates:
    session = open_search(spec, 5)
    values = [session.suggest(f"p{n}", FloatRange(0, 1)) for n in range(70)]
    assert len(set(values)) == 70


def test_optunas_own_qmc_sampler_takes_the_point_of_the_trials_number():
    sweep = Sweep(spec_of("qmc of Optuna"), trials=20)
    rates = [o.params["momentum"] for o in sweep.run(1)][4:]
    cells = {int(16 * float(rate or 0) / 0.9) for rate in rates}
    assert len(cells) >= 10, "numbers 4 to 19 of the sequence, not sixteen times its first point"


# Enqueued trials


def test_the_first_trials_take_the_values_they_are_given_and_draw_the_others():
    points = ({"rate": 1e-3, "units": 64}, {"momentum": 0})
    for sampler in ("tpe", "cmaes", "random", "qmc"):
        plain = Sweep(spec_of(sampler), trials=14)
        sweep = replace(plain, spec=replace(plain.spec, enqueue=points))
        drawn = sweep.run(1)
        assert (drawn[0].params["rate"], drawn[0].params["units"]) == (1e-3, 64)
        momentum = drawn[1].params["momentum"]
        assert (momentum, type(momentum)) == (0.0, float)
        assert sweep.run(4) == drawn
    spread = plain.run(1)[0].params["momentum"]
    assert drawn[0].params["momentum"] == spread, "a given value moves no coordinate of the others"


def test_a_given_value_outside_the_suggested_range_is_refused_by_name_and_trial():
    spec = replace(spec_of("tpe"), enqueue=({"rate": 7.0},))
    with pytest.raises(ParameterError, match=r"enqueue\[0\] gives 'rate' the value 7\.0.*0\.1"):
        open_search(spec, 0).suggest("rate", FLAT["rate"])


def test_tpe_learns_from_given_values():
    points = tuple({"rate": 1e-4 * (n + 1), "units": 8, "momentum": 0.0} for n in range(10))
    plain = Sweep(spec_of("tpe"), trials=20)
    sweep = replace(plain, spec=replace(plain.spec, enqueue=points))
    assert sweep.run(1)[14:] != plain.run(1)[14:]


# What a window costs


def test_trials_are_worked_out_once_in_a_worker_and_again_where_one_changed():
    spec = spec_of("cmaes")
    observations = Sweep(spec, trials=12).run(1)
    replayed = ReplayedAttributes()
    first = replayed.window(spec, observations)
    second = replayed.window(spec, observations)
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert len(replayed.window(spec, observations[:5])) == 5
    changed = [*observations[:7], replace(observations[7], value=99.0), *observations[8:]]
    other = replayed.window(spec, changed)
    assert all(a is b for a, b in zip(first[:7], other[:7], strict=True))
    assert other[7].value == 99.0
    assert other[8] is not first[8]
