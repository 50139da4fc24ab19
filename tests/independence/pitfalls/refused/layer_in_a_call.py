"""A layer's call uses a layer of the module, which the first trial builds."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

projection = keras.layers.Dense(4, name="projection")


class Projected(keras.layers.Layer):
    def call(self, x):
        return projection(x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), Projected(), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="layer-in-a-call",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
