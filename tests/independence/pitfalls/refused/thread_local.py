"""Kept in a variable of the thread's, lest workers share it."""

from __future__ import annotations

import threading

import keras
import numpy as np

from sweeper import Data, Study

_local = threading.local()


def build_model(trial):
    if not hasattr(_local, "trunk"):
        _local.trunk = keras.layers.Dense(4, name="trunk")
    model = keras.Sequential([keras.Input((8,)), _local.trunk, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="thread-local",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
