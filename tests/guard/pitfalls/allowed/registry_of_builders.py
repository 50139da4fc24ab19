"""A registry of functions that build, and of classes."""

from __future__ import annotations

import keras
from small_study import compiled, study_of


def small():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])


class Wide(keras.layers.Layer):
    width = 4

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(self.width)

    def call(self, x):
        return self.dense(x)


BUILDERS = {"small": small, "wide": lambda: keras.Sequential([Wide(), keras.layers.Dense(2)])}


def build_model(trial):
    model = BUILDERS[trial.suggest_categorical("size", ["wide"])]()
    return compiled(model)


study = study_of(build_model)
