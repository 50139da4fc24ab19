"""A dropout layer has no weights, but a seed that moves."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

dropout = keras.layers.Dropout(0.5, name="dropout")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), dropout, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="shared-dropout",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
