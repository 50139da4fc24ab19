"""copy.copy of a model: Keras copies all of it, by saving and loading."""

from __future__ import annotations

import copy

import keras
import numpy as np

from sweeper import Data, Study

base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])


def build_model(trial):
    model = copy.copy(base)
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="copied-model",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
