"""Losses without state, Keras's and one's own."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Focal(keras.losses.Loss):
    def __init__(self, gamma=2.0):
        super().__init__(name="focal")
        self.gamma = gamma

    def call(self, y_true, y_pred):
        chance = keras.ops.take_along_axis(y_pred, keras.ops.cast(y_true, "int32"), axis=-1)
        return -((1 - chance) ** self.gamma) * keras.ops.log(chance)


LOSSES = {"focal": Focal(), "plain": keras.losses.SparseCategoricalCrossentropy()}


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(optimizer="adam", loss=LOSSES[trial.suggest_categorical("loss", ["focal"])])
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="pure-losses",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
