"""A learned temperature in a loss that every trial is given."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Tempered(keras.losses.Loss):
    def __init__(self):
        super().__init__(name="tempered")
        self.temperature = keras.Variable(1.0, name="temperature")

    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred / self.temperature, from_logits=True
        )


tempered = Tempered()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(optimizer="adam", loss=tempered)
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="loss-with-variable",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
