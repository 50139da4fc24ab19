"""Batch normalization without weights still has moving statistics."""

from __future__ import annotations

import keras
from small_study import compiled, study_of

scale = keras.layers.BatchNormalization(center=False, scale=False, name="scale")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), scale, keras.layers.Dense(2)])
    return compiled(model)


study = study_of(build_model)
