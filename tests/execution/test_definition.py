"""A definition is checked when it is written down: each bad argument is named with what it was."""

from __future__ import annotations

import json

import keras
import pytest

from sweeper import Every, Keep
from sweeper.definition import StudyDefinition, StudySettings
from sweeper.errors import DefinitionError


def factory(trial: object) -> None: ...


GOOD = {"name": "s", "model": factory, "data": factory, "epochs": 3, "trials": 4}


def defined(**changes: object) -> StudyDefinition:
    return StudyDefinition(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a/b"}, "'a/b' cannot be a study's name"),
        ({"name": ".."}, "cannot be a study's name"),
        ({"name": "x" * 101}, "cannot be a study's name"),
        ({"name": 3}, "must be a string"),
        ({"model": None}, "model=None cannot be called"),
        ({"model": "model"}, "model='model' cannot be called"),
        ({"data": [1]}, r"data=\[1\] cannot be called"),
        ({"callbacks": []}, r"callbacks=\[\] cannot be called"),
        ({"objective": ""}, "objective=''"),
        ({"objective": None}, "objective=None"),
        ({"direction": "max"}, "direction='max'; it is 'minimize' or 'maximize'"),
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
        ({"pruner": object()}, "pruning is not supported yet"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"checkpoint_every": "step"}, "step"),
        ({"keep": 3}, "keep=3"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_a_bad_argument_is_named(changes: dict[str, object], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        defined(**changes)


def test_a_keras_object_in_place_of_a_factory_is_told_why_that_cannot_be() -> None:
    optimizer = keras.optimizers.Adam()
    with pytest.raises(DefinitionError, match=r"two trials would share .* model=lambda trial: …"):
        defined(model=optimizer)


def test_a_model_can_be_called_and_is_no_factory_all_the_same() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(DefinitionError, match=r"model=lambda trial: …"):
        defined(model=model)


def test_one_and_true_are_two_points() -> None:
    grid = {"x": [1, True, 1.0, "1", None]}
    assert defined(sampler="grid", grid=grid).settings().grid == {"x": tuple(grid["x"])}


def test_settings_go_through_json_unchanged() -> None:
    definition = defined(
        objective="val_accuracy",
        direction="maximize",
        sampler="grid",
        grid={"x": [1, 2.5, "three", None, False]},
        checkpoint_every=Every(steps=7),
        keep=Keep(last=3),
        threads=2,
    )
    settings = definition.settings()
    again = StudySettings.from_json(json.loads(json.dumps(settings.to_json())))
    assert again.to_json() == settings.to_json()


def test_threads_are_resolved_once_from_the_machine_and_the_concurrency() -> None:
    assert defined(threads=3, concurrency=64).settings().threads == 3
    assert defined(concurrency=10_000).settings().threads == 1


def test_a_custom_sampler_is_known_by_its_name() -> None:
    def mine(seed: int) -> None: ...

    told = defined(sampler=mine).settings().sampler
    assert told.startswith("custom:")
    assert told.endswith("mine")
