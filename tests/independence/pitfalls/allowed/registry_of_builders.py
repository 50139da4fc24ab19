"""A registry of functions that build, and of classes."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


def small():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


class Wide(keras.layers.Layer):
    width = 4

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(self.width)

    def call(self, x):
        return self.dense(x)


BUILDERS = {"small": small, "wide": lambda: keras.Sequential([Wide(), keras.layers.Dense(2)])}


def build_model(trial):
    model = BUILDERS[trial.suggest_categorical("size", ["wide"])]()
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="registry-of-builders",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
