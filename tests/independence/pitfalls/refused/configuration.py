"""A dataclass of settings has the layers ready made."""

from __future__ import annotations

from dataclasses import dataclass, field

import keras
import numpy as np

from sweeper import Data, Study


@dataclass
class Config:
    units: int = 4
    hidden: list = field(default_factory=lambda: [keras.layers.Dense(4, name="hidden")])


config = Config()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), *config.hidden, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="configuration",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
