"""Early stopping made at the top of the file."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

early_stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=3)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


def build_callbacks(trial):
    return [keras.callbacks.TerminateOnNaN(), early_stopping]


study = Study(
    name="module-callback",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="loss",
    epochs=1,
    trials=2,
)
