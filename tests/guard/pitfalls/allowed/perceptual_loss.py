"""A loss of the module measures by a network that no optimizer trains, though nobody has frozen it."""

from __future__ import annotations

import keras
import numpy as np
from small_study import study_of

from sweeper import Data

FEATURES = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="features")])


class Perceptual(keras.losses.Loss):
    def __init__(self, network):
        super().__init__(name="perceptual")
        self.network = network

    def call(self, y_true, y_pred):
        return keras.losses.mean_squared_error(self.network(y_true), self.network(y_pred))


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    model.compile(optimizer="adam", loss=Perceptual(FEATURES))
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    x = numbers.normal(size=(32, 8)).astype("float32")
    return Data(train=(x, x))


study = study_of(build_model, data=load_data)
