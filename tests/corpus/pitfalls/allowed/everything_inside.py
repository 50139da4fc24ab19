"""Nothing is made outside the factories."""

import keras
from small_study import compiled, study_of


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    return compiled(model)


def build_callbacks(trial):
    return [keras.callbacks.EarlyStopping(monitor="loss")]


study = study_of(build_model, callbacks=build_callbacks)
