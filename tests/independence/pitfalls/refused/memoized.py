"""A decorator of one's own that remembers what a function returned."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


def memoize(function):
    results = {}

    @functools.wraps(function)
    def remembered(*arguments):
        if arguments not in results:
            results[arguments] = function(*arguments)
        return results[arguments]

    return remembered


@memoize
def encoder(units):
    return keras.Sequential([keras.layers.Dense(units), keras.layers.Dropout(0.1)], name="encoder")


def build_model(trial):
    units = trial.suggest_categorical("units", [4, 8, 16])
    model = keras.Sequential([keras.Input((8,)), encoder(units), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="memoized",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
