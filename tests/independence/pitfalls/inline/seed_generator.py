"""One generator of seeds for the noise of all trials."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

SEEDS = keras.random.SeedGenerator(7)


class Noise(keras.layers.Layer):
    def __init__(self, seeds):
        super().__init__()
        self.seeds = seeds

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds) if training else x


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), Noise(SEEDS), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="seed-generator",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
