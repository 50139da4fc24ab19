"""Normalization adapted at import."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

normalize = keras.layers.Normalization(name="normalize")
normalize.adapt(np.random.default_rng(0).normal(size=(32, 8)))


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), normalize, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="normalization",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
