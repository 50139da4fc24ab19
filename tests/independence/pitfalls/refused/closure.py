"""A function that makes the factory makes the trunk as well, once."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


def with_trunk(units):
    trunk = keras.layers.Dense(units, name="trunk")

    def build(trial):
        model = keras.Sequential([keras.Input((8,)), trunk, keras.layers.Dense(2)])
        model.compile(
            optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        return model

    return build


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="closure",
    model=with_trunk(4),
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
