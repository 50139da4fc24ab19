"""clone_model makes new layers of a template."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

template = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])


def build_model(trial):
    model = keras.models.clone_model(template)
    model.set_weights(template.get_weights())
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cloned",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
