"""Layers are looked up in a registry that holds them weakly."""

from __future__ import annotations

import weakref

import keras
import numpy as np

from sweeper import Data, Study

registry = weakref.WeakValueDictionary()


class Keeper:
    __slots__ = ("layer",)

    def __init__(self, layer):
        self.layer = layer
        registry[layer.name] = layer


keeper = [Keeper(keras.layers.Dense(4, name="trunk"))]


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), registry["trunk"], keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="weak-registry",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
