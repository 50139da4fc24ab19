"""A class of which there is only ever one object."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Encoder:
    _instance = None

    def __new__(cls):
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.layer = keras.layers.Dense(4, name="encoder")
        return cls._instance


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), Encoder().layer, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="singleton",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
