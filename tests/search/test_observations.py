"""Observations from outside of a study: the sampler uses them like Optuna's own trials, and nothing else does."""

import math
from dataclasses import replace

import optuna
import pytest
from simulation import FLAT

from sweeper.declarations.observing import ForeignObservation, checked_observations, observed_text
from sweeper.declarations.searching import Objective
from sweeper.declarations.space import Categorical
from sweeper.errors import DefinitionError
from sweeper.search.sampling import ReplayedAttributes, open_search
from sweeper.search.spaces import Observation, to_optuna
from sweeper.search.spec import SamplerSpec, sampler_seed

TPE = SamplerSpec("tpe", seed=0, window=1)
LOSS = (Objective("val_loss"),)


def points(count):
    """Points of the flat space, of which the one at rate 0.01 is best."""
    observations = []
    for n in range(count):
        params = {"rate": 10 ** (-4 + 3 * n / count), "units": 8 + 8 * (n % 16), "momentum": 0.5}
        observations.append(ForeignObservation(params, (abs(math.log10(params["rate"]) + 2),)))
    return observations


FOREIGN = points(30)


def draw(session, space=FLAT):
    return {name: session.suggest(name, distribution) for name, distribution in space.items()}


def optunas_draw(observations, sampler):
    """What Optuna draws after the same results as its own trials."""
    study = optuna.create_study(sampler=sampler)
    space = {name: to_optuna(distribution) for name, distribution in FLAT.items()}
    for observation in observations:
        trial = optuna.trial.create_trial(
            params=observation.params, distributions=space, values=observation.values
        )
        study.add_trial(trial)
    trial = study.ask()
    return {name: trial._suggest(name, distribution) for name, distribution in space.items()}


@pytest.mark.parametrize("multivariate", [False, True])
def test_tpe_proposes_what_it_proposes_after_optunas_own_trials(multivariate):
    def factory(seed):
        return optuna.samplers.TPESampler(seed=seed, multivariate=multivariate)

    spec = replace(TPE, factory=factory)
    drawn = draw(open_search(spec, 0, foreign=FOREIGN))
    if not multivariate:  # which needs the ranges before the first trial has suggested them
        assert drawn == optunas_draw(FOREIGN, factory(sampler_seed(0, 0)))
        assert drawn != draw(open_search(spec, 0))
    finished = [Observation(0, "complete", FOREIGN[0].params, FLAT, FOREIGN[0].values[0], {0: 1.0})]
    drawn = draw(open_search(spec, 1, finished, foreign=FOREIGN[1:]))
    results = [*FOREIGN[1:], FOREIGN[0]]
    assert drawn == optunas_draw(results, factory(sampler_seed(0, 1)))


def test_observations_are_used_from_their_first_trial_to_their_last():
    bounded = [replace(observation, since=2, until=5) for observation in FOREIGN]
    spec = replace(TPE, window=8)
    for number in range(7):
        used = FOREIGN if 2 <= number < 5 else []
        drawn = draw(open_search(spec, number, foreign=bounded))
        assert drawn == draw(open_search(spec, number, foreign=used)), number


def test_values_outside_of_a_range_and_unknown_parameters_change_nothing():
    outside = [ForeignObservation(o.params | {"rate": 7.0, "typo": 1}, o.values) for o in FOREIGN]
    without_rate = [
        ForeignObservation({n: v for n, v in o.params.items() if n != "rate"}, o.values)
        for o in FOREIGN
    ]
    assert draw(open_search(TPE, 0, foreign=outside)) == draw(
        open_search(TPE, 0, foreign=without_rate)
    )


def test_a_choice_matches_by_its_text_where_its_type_does_not_match():
    kinds = Categorical(("16", 32, True, None))
    session = open_search(TPE, 0, foreign=FOREIGN)
    session.suggest("kind", kinds)
    for texts in ((16, "32", "True", "None"), ("16", 32, True, None)):
        results = [ForeignObservation({"kind": t}, (n % 4,)) for n, t in enumerate(texts * 5)]
        drawn = open_search(TPE, 0, foreign=results).suggest("kind", kinds)
        assert drawn == "16"
    near = [ForeignObservation({"kind": t}, (0.0,)) for t in ("17", 1.5)]
    assert open_search(TPE, 0, foreign=near * 9).suggest("kind", kinds) in kinds.choices


@pytest.mark.parametrize("name", ["cmaes", "nsga"])
def test_other_samplers_take_incomplete_observations_and_repeat_their_draws(name):
    spec = replace(TPE, name=name, window=1)
    if name == "nsga":
        spec = replace(spec, factory=lambda seed: optuna.samplers.NSGAIISampler(seed=seed))
    mixed = [*FOREIGN, ForeignObservation({"units": 8}, (0.0,)), ForeignObservation({}, (0.1,))]
    finished = []
    replayed = ReplayedAttributes()
    for number in range(6):
        drawn = draw(open_search(spec, number, finished, replayed, foreign=mixed))
        assert drawn == draw(open_search(spec, number, finished, foreign=mixed))
        finished.append(Observation(number, "complete", drawn, FLAT, drawn["momentum"], {0: 1.0}))


class ReadsEveryParameter(optuna.samplers.RandomSampler):
    """A sampler that looks up all common parameters in all complete trials, as Optuna's GPSampler does."""

    def infer_relative_search_space(self, study, trial):
        return optuna.search_space.IntersectionSearchSpace().calculate(study)

    def sample_relative(self, study, trial, search_space):
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        lookups = {name: [t.params[name] for t in trials] for name in search_space}
        self.seen = len(trials), lookups
        return {name: min(values) for name, values in lookups.items()}


def test_a_sampler_of_all_parameters_sees_complete_observations_once_the_ranges_are_known():
    samplers = []

    def factory(seed):
        samplers.append(ReadsEveryParameter(seed=seed))
        return samplers[-1]

    spec = replace(TPE, factory=factory)
    outside = ForeignObservation(FOREIGN[0].params | {"rate": 7.0}, (0.0,))
    mixed = [*FOREIGN, ForeignObservation({"units": 8}, (0.0,)), outside]
    first = draw(open_search(spec, 0, foreign=mixed))
    assert first == draw(open_search(spec, 0)), "their ranges are unknown"
    finished = [Observation(0, "complete", FOREIGN[20].params, FLAT, 1.0, {})]
    drawn = draw(open_search(spec, 1, finished, foreign=mixed))
    assert samplers[-1].seen[0] == 1 + len(FOREIGN)
    assert drawn == {"rate": FOREIGN[0].params["rate"], "units": 8, "momentum": 0.5}


@pytest.mark.filterwarnings("ignore:QMCSampler is experimental")
@pytest.mark.parametrize("name", ["random", "qmc", "optuna-qmc"])
def test_a_sampler_that_uses_no_results_draws_as_without_them(name):
    spec = SamplerSpec(name, seed=0, window=2)
    if name == "optuna-qmc":
        sampler = optuna.samplers.QMCSampler
        spec = replace(
            spec, factory=lambda seed: sampler(seed=seed, warn_independent_sampling=False)
        )
    finished = [Observation(0, "complete", FOREIGN[0].params, FLAT, 1.0, {})]
    assert draw(open_search(spec, 2, finished, foreign=FOREIGN)) == draw(
        open_search(spec, 2, finished)
    )


@pytest.mark.filterwarnings("ignore:WilcoxonPruner is experimental")
@pytest.mark.parametrize("pruner", [optuna.pruners.MedianPruner, optuna.pruners.WilcoxonPruner])
def test_a_pruner_does_not_see_them(pruner):
    spec = replace(TPE, pruner=pruner)
    finished = [
        Observation(n, "complete", o.params, FLAT, 0.1 * n, {0: 0.1 * n, 1: 0.1 * n, 2: 0.1})
        for n, o in enumerate(FOREIGN[:4])
    ]
    best = [ForeignObservation(FOREIGN[0].params, (-100.0,))] * 20
    for value in (0.0, 0.25, 9.0):
        curve = [(0, value), (1, value), (2, value)]
        sessions = [open_search(spec, 4, finished, foreign=given) for given in ((), best)]
        for session in sessions:
            draw(session)
        assert len({session.judge(curve) for session in sessions}) == 1
    # The control: as trials of the study they count among the median's five first ones.
    assert not open_search(spec, 4, finished).judge([(0, 9.0)])


def test_two_changed_ranges_of_one_trial_are_both_seen_by_the_sampler():
    """This sampler reads the trials once for all parameters, here before the second range changes."""

    def factory(seed):
        return optuna.samplers.TPESampler(seed=seed, constant_liar=False)

    old = {"a": Categorical(("x", "y")), "b": Categorical(("x", "y"))}
    new = {"a": Categorical(("y", "z")), "b": Categorical(("y", "z"))}
    finished = [
        Observation(n, "complete", {"a": v, "b": v}, old, float(n), {})
        for n, v in enumerate("xy" * 8)
    ]
    drawn = draw(open_search(replace(TPE, factory=factory), 16, finished), new)
    assert {*drawn.values()} <= {"y", "z"}


BAD = {
    "no list": ({"params": {}}, "give a list of mappings"),
    "no mapping": ([0.9], r"observe\[0\]=0.9; give a mapping"),
    "no parameters": ([{"value": 1.0}], r"observe\[0\]=.*give a mapping as in"),
    "no value": ([{"params": {"a": 1}}], "has 0 values, and the study has 1 objective"),
    "two values": ([{"params": {"a": 1}, "values": [1, 2]}], "has 2 values.*1 objective"),
    "NaN": ([{"params": {"a": 1}, "value": math.nan}], "has the value nan; expected a finite"),
    "text": ([{"params": {"a": 1}, "value": "0.9"}], "has the value '0.9'; expected a finite"),
    "a truth": ([{"params": {"a": 1}, "value": True}], "has the value True"),
    "a list": ([{"params": {"a": [1]}, "value": 1}], r"\['params'\]\['a'\] is \[1\]"),
    "infinite": ([{"params": {"a": math.inf}, "value": 1}], "must be finite"),
}


@pytest.mark.parametrize(("entries", "message"), BAD.values(), ids=BAD)
def test_bad_observations_are_refused_by_their_position(entries, message):
    with pytest.raises(DefinitionError, match=message):
        checked_observations(entries, LOSS, "tpe")


def test_observations_for_a_sampler_that_uses_none_are_refused():
    good = [{"params": {"a": 1}, "value": 0.5}]
    for sampler in ("random", "grid", "qmc"):
        with pytest.raises(DefinitionError, match=f"sampler='{sampler}' uses no results"):
            checked_observations(good, LOSS, sampler)
    assert checked_observations(good, LOSS, "tpe") == (ForeignObservation({"a": 1}, (0.5,)),)
    assert checked_observations([{**good[0], "state": "failed"}], LOSS, "tpe") == ()


def test_values_of_several_objectives_are_in_order_or_named():
    two = (*LOSS, Objective("val_accuracy"))
    for values in ([0.5, 0.9], {"val_accuracy": 0.9, "val_loss": 0.5}):
        [observation] = checked_observations([{"params": {}, "values": values}], two, "tpe")
        assert observation.values == (0.5, 0.9)


def test_the_sentence_names_sources_and_trials():
    one = ForeignObservation({"a": 1}, (0.5,))
    from_file = replace(one, source="old.csv", since=4)
    assert observed_text([]) is None
    assert observed_text([one]) == "1 observation for the sampler, no trial: 1 from the definition"
    withdrawn = replace(from_file, until=9)
    text = observed_text([one, from_file, from_file, withdrawn])
    assert text == (
        "4 observations for the sampler, no trials: 1 from the definition; 2 from old.csv, used from "
        "trial 4 on; 1 from old.csv, used by trials 4 to 8"
    )
