"""A list of callbacks as a constant."""

import keras
from small_study import compiled, study_of

CALLBACKS = [
    keras.callbacks.ReduceLROnPlateau(monitor="loss"),
    keras.callbacks.EarlyStopping(monitor="loss"),
]


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def build_callbacks(trial):
    return CALLBACKS


study = study_of(build_model, callbacks=build_callbacks)
