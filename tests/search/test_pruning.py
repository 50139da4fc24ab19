"""Who is pruned, and when, depends on the window and the trial's own values, and nothing else."""

import math
from dataclasses import replace
from functools import partial

import optuna
import pytest
from optuna import pruners
from scripted_trials import definition
from simulation import Sweep

from sweeper.declarations.searching import Objective, describe_pruner
from sweeper.errors import DefinitionError
from sweeper.search.sampling import open_search
from sweeper.search.spec import (
    SamplerSpec,
    leaves_attributes,
    look_back,
    looks_at_trials,
    make_pruner,
    needs_definition,
    search_spec,
    search_window,
)

WINDOW = 4
TRIALS = 24
EPOCHS = 8
ONE = (Objective("loss", "minimize"),)


class Marking(pruners.BasePruner):
    """A user's own: prunes what is worse than the mean of the attributes of finished trials."""

    def __init__(self, slack):
        self.slack = slack

    def prune(self, study, trial):
        value = trial.intermediate_values[trial.last_step]
        study._storage.set_trial_system_attr(trial._trial_id, "seen", value)
        attributes = [
            t.system_attrs["seen"] for t in study.get_trials() if "seen" in t.system_attrs
        ]
        others = attributes[:-1]
        return bool(others) and value > sum(others) / len(others) + self.slack


PRUNERS = {
    "median": lambda: pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
    "percentile": lambda: pruners.PercentilePruner(70.0, n_startup_trials=2),
    "halving": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    "halving of itself": lambda: pruners.SuccessiveHalvingPruner(reduction_factor=2),
    "hyperband": lambda: pruners.HyperbandPruner(max_resource=EPOCHS, reduction_factor=2),
    "hyperband of itself": lambda: pruners.HyperbandPruner(reduction_factor=2),
    "threshold": lambda: pruners.ThresholdPruner(upper=4.5, n_warmup_steps=1),
    "patient": lambda: pruners.PatientPruner(None, patience=1),
    "patient with halving": lambda: pruners.PatientPruner(
        pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2), patience=0
    ),
    "wilcoxon": lambda: pruners.WilcoxonPruner(p_threshold=0.3),
    "nop": pruners.NopPruner,
    "a user's own": lambda: Marking(0.2),
}
NEVER = ("nop",)
BY_REQUEST = ("percentile", "halving of itself", "hyperband of itself", "patient with halving")
"""Whose sweeps are like those of the one before: the others' are what is swept by default."""
SWEPT = [pytest.param(n, marks=pytest.mark.whole) if n in BY_REQUEST else n for n in PRUNERS]


pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def sweep_of(name, sampler="tpe"):
    """A sweep with the pruner, made again from what the database keeps unless it is a user's own."""
    make = PRUNERS[name]
    if name != "a user's own":
        make = partial(make_pruner, describe_pruner(make(), ONE))
    spec = SamplerSpec(sampler, seed=5, window=WINDOW, pruner=make, study="s")
    return Sweep(spec, trials=TRIALS, epochs=EPOCHS)


@pytest.mark.parametrize("name", SWEPT)
def test_one_and_four_workers_prune_the_same_trials_after_the_same_epochs(name):
    sweep = sweep_of(name)
    alone = sweep.run(1)
    assert sweep.run(4, seed=1) == alone
    pruned = [o for o in alone if o.state == "pruned"]
    assert (len(pruned) == 0) == (name in NEVER), [len(o.intermediate) for o in alone]
    assert len(pruned) < TRIALS


@pytest.mark.parametrize("name", SWEPT)
def test_a_trial_resumed_after_any_epoch_by_a_new_worker_is_judged_the_same(name):
    sweep = replace(sweep_of(name, sampler="random"), trials=14)
    assert replace(sweep, newcomers=True).run(4) == sweep.run(1)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["median", "halving", "hyperband", "a user's own"])
def test_without_the_window_who_is_pruned_depends_on_who_finished_first(name):
    """The control of the tests above."""
    sweep = replace(sweep_of(name, sampler="random"), blind=True)
    assert sweep.run(1) != sweep.run(4)


def test_without_the_attributes_of_rungs_halving_prunes_otherwise(monkeypatch):
    """The control of the attributes that are worked out again."""
    sweep = sweep_of("halving", sampler="random")
    alone = sweep.run(1)
    monkeypatch.setattr("sweeper.search.sampling.leaves_attributes", lambda pruner: False)
    assert sweep.run(1) != alone


@pytest.mark.parametrize(
    "name", ["median", "percentile", "threshold", "patient", "wilcoxon", "halving", "hyperband"]
)
def test_with_a_window_of_one_the_decisions_are_optunas(name):
    """One trial after another: `study.ask`, `report` and `should_prune` on one plain study."""
    sweep = sweep_of(name, sampler="random")
    observations = replace(sweep, spec=replace(sweep.spec, window=1)).run(1)
    study = optuna.create_study(study_name="s", pruner=PRUNERS[name]())
    # These write to the study when they are asked, so they are asked about the last epoch, too.
    asked_always = name in ("halving", "hyperband")
    for observation in observations:
        trial = study.ask()
        verdicts = []
        for epoch, value in observation.intermediate.items():
            trial.report(value, epoch)
            verdicts.append((asked_always or epoch < EPOCHS - 1) and trial.should_prune())
        pruned = observation.state == "pruned"
        assert any(verdicts[: EPOCHS - 1]) == pruned
        assert not any(verdicts[:-1])
        state = optuna.trial.TrialState.PRUNED if pruned else None
        study.tell(trial, None if pruned else observation.value, state=state)


def test_who_needs_a_window_and_who_leaves_attributes():
    needs = {n: looks_at_trials(describe_pruner(make(), ONE)) for n, make in PRUNERS.items()}
    assert [n for n, needed in needs.items() if not needed] == ["threshold", "patient", "nop"]
    leaving = [n for n, make in PRUNERS.items() if leaves_attributes(make())]
    assert leaving == [n for n in PRUNERS if "halving" in n or "hyperband" in n or "own" in n]
    assert not looks_at_trials(None)
    assert not leaves_attributes(None)


def test_a_pruner_sets_the_window_for_samplers_that_look_at_nothing():
    grid = {"sampler": "grid", "grid": {"x": list(range(9))}}
    for sampler in ({"sampler": "random"}, {"sampler": "qmc"}, grid):
        sampler |= {"trials": 9, "concurrency": 3}
        assert search_window(definition(**sampler).settings()) is None
        pruned = definition(pruner=pruners.MedianPruner(), **sampler)
        assert search_window(pruned.settings()) == look_back(3) == 5
        alone = definition(pruner=pruners.ThresholdPruner(upper=1.0), **sampler)
        assert search_window(alone.settings()) is None


def test_a_users_own_pruner_needs_the_definition_and_is_copied_for_every_question():
    pruner = Marking(0.5)
    assert describe_pruner(pruner, ONE) == {"class": "custom:Marking", "slack": 0.5}
    study_definition = definition(pruner=pruner)
    assert needs_definition(study_definition.settings())
    with pytest.raises(DefinitionError, match="has a custom sampler or pruner"):
        search_spec(study_definition.settings())
    spec = search_spec(study_definition.settings(), study_definition)
    assert spec.pruner is not None
    assert spec.pruner() is not spec.pruner()
    assert spec.pruner().slack == 0.5
    other = definition(pruner=pruners.MedianPruner())
    assert not needs_definition(other.settings())
    assert isinstance(search_spec(other.settings()).pruner(), pruners.MedianPruner)


def test_a_pruner_that_another_optuna_had_is_refused_by_name():
    with pytest.raises(DefinitionError, match=r"a OldPruner, which optuna .* does not have"):
        make_pruner({"class": "OldPruner"})
    with pytest.raises(DefinitionError, match=r"refuses MedianPruner\(speed=3\)"):
        make_pruner({"class": "MedianPruner", "speed": 3})


def test_nan_is_a_value_like_others_and_earlier_values_that_change_are_refused():
    spec = replace(sweep_of("threshold").spec, window=None, name="random")
    assert open_search(spec, 0).judge([(0, 1.0), (1, math.nan)])
    session = open_search(spec, 0)
    session.judge([(0, 1.0)])
    with pytest.raises(ValueError, match="earlier values changed"):
        session.judge([(0, 2.0), (1, 1.0)])
