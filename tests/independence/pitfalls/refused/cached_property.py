"""A lazy attribute of an object that was made when the file was imported."""

from __future__ import annotations

import functools

import keras
import numpy as np

from sweeper import Data, Study


class Zoo:
    @functools.cached_property
    def encoder(self):
        return keras.layers.Dense(4, name="encoder")


zoo = Zoo()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), zoo.encoder, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cached-property",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
