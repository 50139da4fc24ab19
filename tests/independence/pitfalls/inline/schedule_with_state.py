"""A schedule that counts its calls."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Counting(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1e-3 / self.calls


counting = Counting()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.SGD(counting),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="schedule-with-state",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
