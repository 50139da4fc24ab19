"""A callback that holds this trial's model."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

current = {}


class Sampler(keras.callbacks.Callback):
    def __init__(self, sampled):
        super().__init__()
        self.sampled = sampled
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.sampled.predict(np.zeros((1, 8)), verbose=0)[0, 0]))


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    current["model"] = model
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


def build_callbacks(trial):
    return [Sampler(current["model"])]


study = Study(
    name="model-for-a-callback",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="loss",
    epochs=1,
    trials=2,
)
