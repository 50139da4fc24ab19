"""Calls of a study's factories, each with its own seed and under guard.

So the random numbers of one factory do not affect the next, and an object that two trials share is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from sweeper.definition.trial import Trial
from sweeper.errors import DataError, FactoryError
from sweeper.guard.guard import Guard, What
from sweeper.guard.owned import name_of
from sweeper.train.data import Data
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.step import TrainingStep

Factory = Callable[[Trial], Any]


def build_model(factory: Factory, trial: Trial, seeds: TrialSeeds, guard: Guard) -> keras.Model:
    """Return the trial's model.

    Raises:
        FactoryError: The factory returned something else.
        IndependenceError: It contains an object that existed before the trial.
    """
    model = _built("model", factory, trial, seeds, guard)
    if not isinstance(model, keras.Model):
        msg = (
            f"the model factory {name_of(factory)} returned {_what(model)}; expected a compiled "
            "keras.Model (does it end with `return model`?)"
        )
        raise FactoryError(msg)
    guard.check("model", model)
    return model


def build_step(
    factory: Factory | None, model: keras.Model, trial: Trial, seeds: TrialSeeds, guard: Guard
) -> TrainingStep | None:
    """Return the trial's training step, bound to its model; None without a factory.

    Raises:
        FactoryError: The factory returned something else, or it and the model do not fit.
        IndependenceError: It holds something that was there before the trial.
    """
    if factory is None:
        return None
    step = _built("step", factory, trial, seeds, guard)
    if not isinstance(step, TrainingStep):
        msg = (
            f"the step factory {name_of(factory)} returned {_what(step)}; expected a "
            "sweeper.TrainingStep (does it end with `return`?)"
        )
        raise FactoryError(msg)
    guard.check("step", step)
    with FreshEntropy(seeds.sequence("step"), "step"):
        step.bind(model)
    return step


def build_data(factory: Factory, trial: Trial, seeds: TrialSeeds, guard: Guard) -> Data:
    """Return the trial's data.

    Raises:
        DataError: The factory returned something else.
        IndependenceError: They hold something that was there before the trial.
    """
    data = _built("data", factory, trial, seeds, guard)
    if not isinstance(data, Data):
        msg = (
            f"the data factory {name_of(factory)} returned {_what(data)}; expected "
            "sweeper.Data(train=(x, y), validation=(x_val, y_val), batch_size=…)"
        )
        error = DataError(msg)
        error.of_study = True
        raise error
    guard.check("data", data)
    return data


def build_callbacks(
    factory: Factory | None, trial: Trial, seeds: TrialSeeds, guard: Guard
) -> Sequence[keras.callbacks.Callback]:
    """Return the trial's callbacks; none without a factory.

    Raises:
        FactoryError: The factory returned something else.
        IndependenceError: They hold something that was there before the trial.
    """
    seed_everything(seeds.child("callbacks"))
    callbacks: Any = []
    if factory is not None:
        callbacks = _built("callbacks", factory, trial, seeds, guard)
    if not isinstance(callbacks, list | tuple) or not all(
        isinstance(callback, keras.callbacks.Callback) for callback in callbacks
    ):
        msg = (
            f"the callbacks factory {name_of(factory)} returned {callbacks!r}; expected a list of "
            "callbacks"
        )
        raise FactoryError(msg)
    guard.check("callbacks", callbacks)
    return callbacks


def _built(what: What, factory: Factory, trial: Trial, seeds: TrialSeeds, guard: Guard) -> Any:
    seed_everything(seeds.child(what))
    # The other trials have the same code.
    tell = guard.warn if trial.number == 0 else None
    guard.name_factory(what, factory)
    with FreshEntropy(seeds.sequence(what), what, tell):
        return factory(trial)


def _what(value: object) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
