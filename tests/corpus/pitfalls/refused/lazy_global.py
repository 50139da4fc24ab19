"""A global that the first call fills."""

import keras
from small_study import compiled, study_of

_encoder = None


def encoder():
    global _encoder
    if _encoder is None:
        _encoder = keras.layers.Dense(4, name="encoder")
    return _encoder


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), encoder(), keras.layers.Dense(2)]))


study = study_of(build_model)
