"""A pretrained model, loaded from its file once, that every trial goes on training."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import keras
import numpy as np

from sweeper import Data, Study


@functools.lru_cache(maxsize=1)
def pretrained():
    file = Path(tempfile.mkdtemp()) / "base.keras"
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)], name="base").save(file)
    return keras.models.load_model(file)


def build_model(trial):
    model = keras.Sequential([*pretrained().layers, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="loaded-once",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
