"""Calls of a study's factories, each with its own seed and under guard.

So the random numbers of one factory do not affect the next, and an object that two trials share is
refused. Both functions raise `IndependenceError` if the result contains an object that existed before
the trial and must not be shared.
"""

from collections.abc import Callable
from typing import Any

import keras

from sweeper.definition.trial import Trial
from sweeper.errors import DataError, FactoryError
from sweeper.guard.guard import Guard, What, name_of
from sweeper.support.shown import shown_value
from sweeper.train.data import Data
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.step import TrainingStep

Factory = Callable[[Trial], Any]

_EXPECTED: dict[What, tuple[Any, str]] = {
    "model": (keras.Model, "a compiled keras.Model (does it end with `return model`?)"),
    "step": (TrainingStep, "a sweeper.TrainingStep (does it end with `return`?)"),
    "data": (Data, "sweeper.Data(train=(x, y), validation=(x_val, y_val), batch_size=…)"),
    "callbacks": (list | tuple, "a list of callbacks"),
}
"""Class of each factory's result, and its description for errors."""


def build_step(
    factory: Factory | None, model: keras.Model, trial: Trial, seeds: TrialSeeds, guard: Guard
) -> TrainingStep | None:
    """Return the trial's training step, bound to its model; None without a factory."""
    step: TrainingStep | None = build("step", factory, trial, seeds, guard)
    if step is not None:
        with FreshEntropy(seeds.sequence("step"), "step"):
            step.bind(model)
    return step


def build(
    what: What, factory: Factory | None, trial: Trial, seeds: TrialSeeds, guard: Guard
) -> Any:
    """Return what the factory makes for the trial; None without a factory.

    Raises:
        DataError, FactoryError: It returned something else than `_EXPECTED`.
    """
    if factory is None:
        return None
    seed_everything(seeds.child(what))
    # The other trials have the same code.
    notify = guard.notify if trial._number == 0 else None
    asks = trial.asks
    try:
        with FreshEntropy(seeds.sequence(what), what, notify):
            product = factory(trial)
    except Exception as raised:
        # It failed without a parameter; `failure_of` decides whether it fails so in every trial.
        raised.of_study = getattr(raised, "of_study", False) or trial.asks == asks  # type: ignore[attr-defined]
        raise
    cls, expected = _EXPECTED[what]
    right = isinstance(product, cls)
    if right and what == "callbacks":
        right = all(isinstance(callback, keras.callbacks.Callback) for callback in product)
    if not right:
        description = f"a {type(product).__module__}.{type(product).__qualname__}"
        if product is None or what == "callbacks":
            description = shown_value(product)
        msg = f"the {what} factory {name_of(factory)} returned {description}; expected {expected}"
        error = DataError(msg) if what == "data" else FactoryError(msg)
        error.of_study = True
        raise error
    guard.check(what, product, factory)
    return product
