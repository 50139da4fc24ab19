"""A model that is built by its first batch, made once."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Net(keras.Model):
    def __init__(self):
        super().__init__(name="net")
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(x)


net = Net()


def build_model(trial):
    net.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="unbuilt-subclass",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
