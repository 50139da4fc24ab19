"""A list of what was tried, and counters, that nothing trains by."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

tried = []
counts = {"models": 0}


def build_model(trial):
    counts["models"] += 1
    tried.append(trial.suggest_float("learning_rate", 1e-4, 1e-2))
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.Adam(tried[-1]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="results-kept",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
