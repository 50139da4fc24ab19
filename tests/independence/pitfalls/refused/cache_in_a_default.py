"""A default argument as a cache, by the parameter."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


def embedding(units, made={}):
    if units not in made:
        made[units] = keras.layers.Dense(units, name="embedding")
    return made[units]


def build_model(trial):
    units = trial.suggest_int("units", 4, 64)
    model = keras.Sequential([keras.Input((8,)), embedding(units), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cache-in-a-default",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
