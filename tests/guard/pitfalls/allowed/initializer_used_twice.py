"""One initializer without a seed for two layers of a model."""

from __future__ import annotations

import keras
from small_study import compiled, study_of


def build_model(trial):
    normal = keras.initializers.RandomNormal()
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, kernel_initializer=normal, name="first"),
            keras.layers.Dense(8, kernel_initializer=normal, name="second"),
            keras.layers.Dense(2),
        ]
    )
    return compiled(model)


study = study_of(build_model)
