"""Two learning rates compared on what looks like a copy of the model."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
)


def build_model(trial):
    model_copy = model
    model_copy.compile(
        optimizer=keras.optimizers.RMSprop(trial.suggest_float("learning_rate", 1e-4, 1e-2)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model_copy


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="model-copy",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
