"""A list of callbacks as a constant."""

import keras
from small_study import build_model, study_of

CALLBACKS = [
    keras.callbacks.ReduceLROnPlateau(monitor="loss"),
    keras.callbacks.EarlyStopping(monitor="loss"),
]


def build_callbacks(trial):
    return CALLBACKS


study = study_of(build_model, callbacks=build_callbacks)
