"""One layer applied twice inside one model."""

from __future__ import annotations

import keras
import numpy as np
from small_study import compiled, study_of

from sweeper import Data


def build_model(trial):
    left, right = keras.Input((8,)), keras.Input((8,))
    tower = keras.layers.Dense(4)
    difference = keras.layers.Subtract()([tower(left), tower(right)])
    model = keras.Model([left, right], keras.layers.Dense(2)(difference))
    return compiled(model)


def load_data(trial):
    x = np.zeros((32, 8), "float32")
    return Data(train=((x, x), np.zeros(32, "int32")))


study = study_of(build_model, data=load_data)
