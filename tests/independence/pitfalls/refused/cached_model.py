"""functools.cache gives the second trial the first one's model."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


@functools.cache
def make(units):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(2)])


def build_model(trial):
    model = make(4)
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cached-model",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
