"""A dtype policy of the module's, and strings for everything else."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

POLICY = keras.DTypePolicy("mixed_bfloat16")
ACTIVATIONS = {"relu": keras.activations.relu, "gelu": keras.activations.gelu}


def build_model(trial):
    activation = ACTIVATIONS[trial.suggest_categorical("activation", ["relu", "gelu"])]
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4, activation, dtype=POLICY), keras.layers.Dense(2)]
    )
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="dtype-policy",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
