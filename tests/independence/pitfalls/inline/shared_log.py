"""Every trial's callback appends to one list."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

log = []


class Recorder(keras.callbacks.Callback):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append((epoch, logs["loss"]))
        if len(self.rows) > 20:
            self.model.stop_training = True


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
    return [Recorder(log)]


study = Study(
    name="shared-log",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="loss",
    epochs=1,
    trials=2,
)
