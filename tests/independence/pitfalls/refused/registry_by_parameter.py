"""Backbones kept by their size, so that one of a size is made only once."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

BACKBONES = {}


def backbone_of(units):
    if units not in BACKBONES:
        BACKBONES[units] = keras.layers.Dense(units, activation="relu", name=f"backbone_{units}")
    return BACKBONES[units]


def build_model(trial):
    units = trial.suggest_int("units", 4, 64)
    model = keras.Sequential([keras.Input((8,)), backbone_of(units), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="registry-by-parameter",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
