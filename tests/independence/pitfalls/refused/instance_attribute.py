"""A builder that makes its model at its first call and keeps it."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Builder:
    def __init__(self):
        self.model = None

    def build(self, trial):
        if self.model is None:
            self.model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        self.model.compile(
            optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        return self.model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="instance-attribute",
    model=Builder().build,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
