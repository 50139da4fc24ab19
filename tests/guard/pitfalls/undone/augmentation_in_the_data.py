"""A layer of random flips in the pipeline of the data."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from small_study import compiled, study_of

from sweeper import Data

flip = keras.layers.RandomFlip(name="flip")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def load_data(trial):
    x, y = np.arange(256, dtype="float32").reshape(32, 8), np.zeros(32, "int32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return Data(train=dataset.map(lambda a, b: (tf.reshape(flip(a[:, None, :, None]), (-1, 8)), b)))


study = study_of(build_model, data=load_data)
