"""A global that the first call fills."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

_encoder = None


def encoder():
    global _encoder
    if _encoder is None:
        _encoder = keras.layers.Dense(4, name="encoder")
    return _encoder


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), encoder(), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="lazy-global",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
