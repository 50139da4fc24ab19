"""functools.partial binds a layer to the factory."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


def build_model(trial, head):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), head])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="partial",
    model=functools.partial(build_model, head=keras.layers.Dense(2, name="head")),
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
