"""clone_model with a function that gives each layer back."""

import functools

import keras
from small_study import compiled, study_of


@functools.cache
def base():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, name="trunk")])


def build_model(trial):
    copied = keras.models.clone_model(base(), clone_function=lambda layer: layer)
    return compiled(keras.Sequential([copied, keras.layers.Dense(2)]))


study = study_of(build_model)
