"""A frozen network with batch normalization in it."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

backbone = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization()], name="backbone"
)
backbone.compile(optimizer="adam", loss="mse")
backbone.trainable = False


def build_model(trial):
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(inputs, training=False)))
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="frozen-backbone",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
