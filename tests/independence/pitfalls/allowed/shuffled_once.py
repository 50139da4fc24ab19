"""A tf.data pipeline made at import whose order was drawn once and stays."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from sweeper import Data, Study

x, y = np.zeros((32, 8), "float32"), np.zeros(32, "int32")
dataset = (
    tf.data.Dataset.from_tensor_slices((x, y))
    .shuffle(32, seed=1, reshuffle_each_iteration=False)
    .batch(8)
    .prefetch(2)
)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    return Data(train=dataset, validation=dataset)


study = Study(
    name="shuffled-once",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
