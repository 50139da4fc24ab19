"""A network that a callback only predicts with."""

from __future__ import annotations

import keras
import numpy as np
from small_study import compiled, study_of

scorer = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="scorer")


class Score(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(float(scorer(np.zeros((1, 2)))[0, 0]))


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def build_callbacks(trial):
    return [Score()]


study = study_of(build_model, callbacks=build_callbacks)
