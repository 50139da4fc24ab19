"""A layer adds a weight that the file made."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Bias(keras.layers.Layer):
    def __init__(self, bias):
        super().__init__(name="bias")
        self.bias = bias

    def call(self, x):
        return x + self.bias


bias = keras.Variable(np.zeros(8), name="offset")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), Bias(bias), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="shared-weight",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
