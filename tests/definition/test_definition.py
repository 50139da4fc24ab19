"""A definition is checked when it is written down: each bad argument is named with what it was."""

import json
import re

import keras
import numpy as np
import pytest
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import HyperbandPruner, MedianPruner, PatientPruner, ThresholdPruner

from sweeper import Data, Every, Keep
from sweeper.declarations.budgets import Halving
from sweeper.declarations.repeating import ConfirmRequest, Repeating
from sweeper.definition.definition import (
    StudyDefinition,
    StudySettings,
    definition_fingerprint,
)
from sweeper.errors import DefinitionError, UsageError
from sweeper.records.code import CodeFingerprint, CodePart
from sweeper.search.spec import look_back
from sweeper.train.randomness.seeds import TrialSeeds

TWO = {"objective": ["loss", "accuracy"], "direction": ["minimize", "maximize"]}
GOOD = {"name": "s", "model": print, "data": print, "epochs": 3, "trials": 4}


def defined(**changes):
    return StudyDefinition(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "'a/b' cannot be a study's name"),
        ({"name": ".."}, "cannot be a study's name"),
        ({"name": "größen"}, "use 1 to 100 ASCII letters"),
        ({"name": "x" * 101}, "cannot be a study's name"),
        ({"name": 3}, "must be a string"),
        ({"model": None}, "model= takes a function, .*, and None cannot be called"),
        ({"model": "model"}, "and 'model' cannot be called; if a function returned it"),
        (
            {"data": [1]},
            r"data= takes a function, trial -> Data, and \[1\] cannot be called; .* data=FUNCTION",
        ),
        ({"callbacks": []}, r"and \[\] cannot be called"),
        ({"objective": ""}, "objective=''"),
        ({"objective": None}, "objective=None"),
        ({"direction": "max"}, "direction='max'; it is 'minimize' or 'maximize'"),
        ({"audit": "some"}, "audit='some'; it is one of 'auto', 'all', 'off'"),
        ({"audit": None}, "audit=None; it is one of"),
        ({"epochs": 0}, "epochs=0; it must be a whole number, at least 1"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"epochs": True}, "epochs=True"),
        ({"trials": -1}, "trials=-1"),
        ({"sampler": "tpee"}, "sampler='tpee'; the samplers are 'tpe'"),
        ({"sampler": 3}, "sampler=3; give one of"),
        ({"sampler": "grid"}, "needs grid="),
        ({"grid": {"x": [1]}}, "grid= is given, but sampler='tpe'"),
        ({"sampler": "grid", "grid": {}}, r"grid=\{\}"),
        ({"sampler": "grid", "grid": {"x": []}}, r"grid\['x'\]=\[\]"),
        ({"sampler": "grid", "grid": {"x": "abc"}}, r"grid\['x'\]='abc'"),
        ({"sampler": "grid", "grid": {"x": [print]}}, "points are None, bool"),
        ({"sampler": "grid", "grid": {"x": [float("nan")]}}, "must be finite"),
        ({"sampler": "grid", "grid": {"x": [1, 1]}}, "names a point twice"),
        ({"pruner": object()}, "is not a pruner; give an object"),
        ({"pruner": MedianPruner}, r"is not a pruner; give an object, such as MedianPruner\(\)"),
        ({"pruner": MedianPruner(), **TWO}, "'loss', 'accuracy': Optuna prunes by one value"),
        (
            {"objective": ["a", "b"], "direction": "minimize"},
            "one name and one direction, or two lists of equal length",
        ),
        ({"objective": ["a", "b"], "direction": ["minimize"]}, "two lists of equal length"),
        ({"objective": "a", "direction": ["minimize"]}, "two lists of equal length"),
        ({"objective": [], "direction": []}, "two lists of equal length"),
        ({"objective": ["a", "a"], "direction": ["minimize"] * 2}, "names a metric twice"),
        ({"objective": ["a", ""], "direction": ["minimize"] * 2}, "the name of a metric"),
        ({"enqueue": {"x": 1}}, r"enqueue=\{'x': 1\}; give a list"),
        ({"enqueue": [1]}, r"enqueue\[0\]=1; give a mapping"),
        ({"enqueue": [{}, {"x": [1]}]}, r"enqueue\[1\]\['x'\] is \[1\]; values are None"),
        ({"enqueue": [{"x": float("inf")}]}, "values must be finite"),
        ({"enqueue": [{}] * 5}, "enqueue= has 5 trials, but trials=4"),
        ({"enqueue": [{}], "sampler": "grid", "grid": {"x": [1]}}, "together with sampler='grid'"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"checkpoint_every": "step"}, "step"),
        ({"keep": 3}, "keep=3"),
        ({"threads": 0}, "threads=0"),
        ({"repeats": 5, "trials": 12}, "trials=12 with repeats=5: .* give 10 or 15"),
        ({"repeats": 15, "trials": 12}, "give 15"),
        ({"repeats": 0}, "repeats=0; it must be a whole number, at least 1"),
        ({"repeats": 1.5}, "repeats=1.5"),
        ({"repeats": 2, **TWO}, "repeats=2 with the objectives 'loss', 'accuracy'"),
        ({"repeats": 2, "budget": Halving(), "epochs": 9}, "repeats=2 with a budget"),
        (
            {"repeats": 2, "enqueue": [{}] * 3},
            "has 3 configurations of 2 repeats each, but trials=4",
        ),
    ],
)
def test_a_bad_argument_is_named(changes, message):
    with pytest.raises(DefinitionError, match=message):
        defined(**changes)


def test_the_advice_is_not_buried_below_a_value_of_many_lines():
    data = Data(train=(np.zeros((200, 8)), np.zeros(200)), batch_size=32)
    for changes in ({"data": data}, {"keep": data}, {"epochs": data}, {"sampler": data}):
        with pytest.raises(DefinitionError) as raised:
            defined(**changes)
        assert len(str(raised.value)) < 250
        assert "\n" not in str(raised.value)


def test_a_keras_object_instead_of_a_factory_is_refused_though_a_model_can_be_called():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    for instance in (keras.optimizers.Adam(), model):
        with pytest.raises(
            DefinitionError, match=r"two trials would share .* model=lambda trial: …"
        ):
            defined(model=instance)


@pytest.mark.parametrize(
    ("changes", "objectives"),
    [
        (
            {
                "objective": "val_accuracy",
                "direction": "maximize",
                "sampler": "grid",
                "grid": {"x": [1, True, 1.0, "three", None]},
                "checkpoint_every": Every(steps=7),
                "keep": Keep(last=3),
                "threads": 2,
                "audit": "all",
            },
            [("val_accuracy", "maximize")],
        ),
        (
            {"enqueue": [{"x": 1, "kind": None}], **TWO},
            [("loss", "minimize"), ("accuracy", "maximize")],
        ),
    ],
)
def test_settings_go_through_json_unchanged(changes, objectives):
    settings = defined(**changes).settings()
    restored = StudySettings.from_json(json.loads(json.dumps(settings.to_json())))
    assert repr(restored.to_json()) == repr(settings.to_json()), "one and true are two points"
    assert [
        (objective.name, objective.direction) for objective in restored.objectives
    ] == objectives
    assert restored.audit == changes.get("audit", "auto")


def test_threads_are_resolved_once_from_the_machine_and_the_concurrency():
    assert defined(threads=3, concurrency=64).settings().threads == 3
    assert defined(concurrency=10_000).settings().threads == 1


def test_a_custom_sampler_is_known_by_its_name():
    def mine(seed): ...

    assert re.fullmatch("custom:.*mine", defined(sampler=mine).settings().sampler)


class OwnPruner:
    def __init__(self, limit, table):
        self.limit = limit
        self._table = table

    def prune(self, study, trial):
        return False


def test_a_pruner_is_described_by_what_it_was_made_with():
    def described(pruner):
        return json.loads(json.dumps(defined(pruner=pruner).settings().to_json()["pruner"]))

    assert described(ThresholdPruner(upper=2.0)) == {
        "class": "ThresholdPruner",
        "lower": None,
        "upper": 2.0,
        "n_warmup_steps": 0,
        "interval_steps": 1,
    }
    with pytest.warns(ExperimentalWarning):
        patient = described(PatientPruner(HyperbandPruner(max_resource=9), patience=2))
    assert patient["wrapped_pruner"]["max_resource"] == 9
    description = described(OwnPruner(0.5, table=object()))
    assert description == {"class": "custom:OwnPruner", "limit": 0.5}


def test_one_repeat_changes_neither_the_stored_definition_nor_its_fingerprint():
    settings = defined(trials=12).settings().to_json()
    assert "repeats" not in settings
    assert "confirm" not in settings
    repeated = defined(trials=12, repeats=3).settings().to_json()
    assert repeated["repeats"] == 3
    assert definition_fingerprint(settings, None) != definition_fingerprint(repeated, None)
    assert StudySettings.from_json(repeated).repeating == Repeating(3)


def test_repeats_are_paired_by_seed_and_one_repeat_keeps_every_trials_seed():
    assert [Repeating().seed_position(n) for n in (0, 1, 17)] == [0, 1, 17]
    repeating = Repeating(3)
    pairs = [(repeating.configuration_of(n), repeating.repeat_of(n)) for n in range(6)]
    assert pairs == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    seeds = [TrialSeeds(7, repeating.seed_position(n)).root for n in range(6)]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3


def test_a_confirmations_seeds_are_paired_and_shared_with_no_trial_of_the_search():
    repeating = Repeating(2, (4, 8), 5)
    seeds = [TrialSeeds(0, repeating.seed_position(n)).root for n in range(6)]
    assert seeds[0::2] == seeds[1::2]
    searched = {TrialSeeds(0, number).root for number in range(1000)}
    assert not searched & set(seeds)
    assert [repeating.number(8, r) for r in range(3)] == [1, 3, 5]


@pytest.mark.parametrize(
    ("concurrency", "repeats", "window"),
    [(4, 1, 7), (1, 1, 1), (1, 5, 1), (4, 5, 2), (4, 2, 4), (2, 5, 2), (8, 5, 3), (4, 100, 2)],
)
def test_the_window_counts_configurations(concurrency, repeats, window):
    assert look_back(concurrency, repeats) == window


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 1}, "repeats=1"),
        ({"best": 1}, "best=1"),
        ({"best": 3, "trials": (1, 2)}, "both given"),
        ({"repeats": 5, "at_most": 4}, "at_most=4 is below repeats=5"),
    ],
)
def test_an_impossible_confirmation_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        ConfirmRequest(**arguments)


def test_code_of_the_search_alone_is_not_in_the_fingerprint():
    parts = {"model": CodePart("a"), "sampler": CodePart("b")}
    both = CodeFingerprint(parts)
    marked = both.of_trials(CodeFingerprint({"model": CodePart("a")}))
    changed = CodeFingerprint({**marked.parts, "sampler": CodePart("c", of_search=True)})
    assert marked.digest == changed.digest != both.digest
    assert changed.changes_since(marked, of_search=False) == ()
    assert changed.changes_since(marked, of_search=True) == ("sampler has changed",)
    assert CodeFingerprint.from_json(marked.to_json()) == marked
