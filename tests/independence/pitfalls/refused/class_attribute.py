"""A layer in a class's body is one layer for all its instances."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Net(keras.Model):
    trunk = keras.layers.Dense(4, name="trunk")

    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.trunk(x))


def build_model(trial):
    model = Net()
    model.build((None, 8))
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="class-attribute",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
