"""Keras's schedules are functions of the step."""

from __future__ import annotations

import keras
from small_study import study_of

SCHEDULE = keras.optimizers.schedules.CosineDecay(1e-3, 1000)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(
        optimizer=keras.optimizers.Adam(SCHEDULE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


study = study_of(build_model)
