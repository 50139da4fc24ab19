"""The layer is in another module of the project."""

from __future__ import annotations

import keras
from project import parts
from small_study import study_of


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), parts.embedding(), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


study = study_of(build_model)
