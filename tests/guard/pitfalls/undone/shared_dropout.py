"""A dropout layer has no weights, but a seed that moves."""

from __future__ import annotations

import keras
from small_study import compiled, study_of

dropout = keras.layers.Dropout(0.5, name="dropout")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), dropout, keras.layers.Dense(2)])
    return compiled(model)


study = study_of(build_model)
