"""A tf.data pipeline that draws another order each time it is read."""

import keras
import numpy as np
import tensorflow as tf
from small_study import compiled, study_of

from sweeper import Data

x = np.zeros((32, 8), "float32")
dataset = (
    tf.data.Dataset.from_tensor_slices((x, np.zeros(32, "int32"))).shuffle(32, seed=1).batch(8)
)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def load_data(trial):
    return Data(train=dataset.prefetch(1))


study = study_of(build_model, data=load_data)
