"""One optimizer a name and rate."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


@functools.lru_cache
def optimizer_of(name, rate):
    return {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[name](rate)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    name = trial.suggest_categorical("optimizer", ["adam", "sgd"])
    model.compile(
        optimizer=optimizer_of(name, 0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cached-optimizer",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
