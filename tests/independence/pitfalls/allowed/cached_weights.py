"""Arrays of weights, read once, that every trial's own layers begin with."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


@functools.cache
def first_weights(units):
    numbers = np.random.default_rng(units)
    return numbers.normal(size=(8, units)).astype("float32"), np.zeros(units, "float32")


def build_model(trial):
    trunk = keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((8,)), trunk, keras.layers.Dense(2)])
    trunk.set_weights(first_weights(4))
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cached-weights",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
