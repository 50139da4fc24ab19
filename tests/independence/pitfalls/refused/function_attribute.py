"""The factory keeps what it made on itself."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


def build_model(trial):
    if not hasattr(build_model, "made"):
        build_model.made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model = build_model.made
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="function-attribute",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
