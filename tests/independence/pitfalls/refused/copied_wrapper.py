"""A shallow copy of an object that holds a model."""

from __future__ import annotations

import copy
import functools

import keras
import numpy as np

from sweeper import Data, Study


class Network:
    def __init__(self):
        self.model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)], name="network")


@functools.cache
def network():
    return Network()


def build_model(trial):
    model = copy.copy(network()).model
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="copied-wrapper",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
