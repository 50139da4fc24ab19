"""Ready models by name."""

from __future__ import annotations

import keras
from small_study import study_of


def make(units):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(2)])


MODELS = {"small": make(4), "large": make(16)}


def build_model(trial):
    model = MODELS[trial.suggest_categorical("size", ["small"])]
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


study = study_of(build_model)
