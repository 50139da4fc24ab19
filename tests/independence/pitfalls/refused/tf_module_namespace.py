"""A bare tf.Module as a place to keep what was made."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from sweeper import Data, Study

parts = tf.Module()


class Network(keras.Model):
    def __init__(self, units):
        super().__init__()
        if not hasattr(parts, "trunk"):
            parts.trunk = keras.layers.Dense(units, name="trunk")
        self.parts = parts
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.parts.trunk(x))


def build_model(trial):
    model = Network(4)
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="tf-module-namespace",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
