"""Early stopping made at the top of the file."""

from __future__ import annotations

import keras
from small_study import study_of

early_stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=3)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def build_callbacks(trial):
    return [keras.callbacks.TerminateOnNaN(), early_stopping]


study = study_of(build_model, callbacks=build_callbacks)
