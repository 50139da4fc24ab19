"""clone_model with a function that gives each layer back."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


@functools.cache
def base():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="trunk")])


def build_model(trial):
    copied = keras.models.clone_model(base(), clone_function=lambda layer: layer)
    model = keras.Sequential([copied, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="same-layers-in-a-clone",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
