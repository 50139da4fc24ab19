"""A generator that is used up by the first trial."""

import keras
import numpy as np
from small_study import compiled, study_of

from sweeper import Data


def read():
    for _ in range(1000):
        yield np.zeros((8, 8), "float32"), np.zeros(8, "int32")


stream = read()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def load_data(trial):
    return Data(train=lambda epoch: stream, steps_per_epoch=4)


study = study_of(build_model, data=load_data)
