"""Ready models by name."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


def make(units):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(2)])


MODELS = {"small": make(4), "large": make(16)}


def build_model(trial):
    model = MODELS[trial.suggest_categorical("size", ["small"])]
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="registry",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
