"""The model is built and compiled when the file is imported."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

MODEL = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
MODEL.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def build_model(trial):
    return MODEL


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="compiled-once",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
