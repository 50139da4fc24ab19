"""The layer is in another module of the project."""

import keras
from project import parts
from small_study import compiled, study_of


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), parts.embedding(), keras.layers.Dense(2)]))


study = study_of(build_model)
