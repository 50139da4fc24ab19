"""A loss that keeps a running scale."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Scaled(keras.losses.Loss):
    def __init__(self):
        super().__init__(name="scaled")
        self.scale = 1.0

    def call(self, y_true, y_pred):
        self.scale *= 0.99
        return self.scale * keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


LOSSES = {"scaled": Scaled()}


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(optimizer="adam", loss=LOSSES["scaled"])
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="loss-with-state",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
