"""lru_cache keeps a backbone that is slow to make."""

from __future__ import annotations

from functools import lru_cache

import keras
import numpy as np

from sweeper import Data, Study


@lru_cache(maxsize=4)
def backbone(units):
    return keras.Sequential(
        [keras.layers.Dense(units), keras.layers.BatchNormalization()], name="backbone"
    )


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), backbone(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="cached-backbone",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
