"""An initializer without a seed, made at import and used twice."""

from __future__ import annotations

import keras
from small_study import study_of

initializer = keras.initializers.GlorotUniform()


def build_model(trial):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(8, kernel_initializer=initializer, name="first"),
            keras.layers.Dense(8, kernel_initializer=initializer, name="second"),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


study = study_of(build_model)
