"""A tf.Module made once, around a layer."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from sweeper import Data, Study


class Trunk(tf.Module):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, name="trunk")

    def __call__(self, x):
        return self.dense(x)


TRUNK = Trunk()


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = TRUNK
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.trunk(x))


def build_model(trial):
    model = Network()
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="tf-module",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
