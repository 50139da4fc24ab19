"""Ready models by name."""

from __future__ import annotations

import keras
from small_study import compiled, study_of


def make(units):
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(2)])


MODELS = {"small": make(4), "large": make(16)}


def build_model(trial):
    model = MODELS[trial.suggest_categorical("size", ["small"])]
    return compiled(model)


study = study_of(build_model)
