"""copy.copy of a model: Keras copies all of it, by saving and loading."""

import copy

import keras
from small_study import compiled, study_of

base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])


def build_model(trial):
    return compiled(copy.copy(base))


study = study_of(build_model)
