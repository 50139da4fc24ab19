"""Sequential(other.layers): every layer is the other's."""

from __future__ import annotations

import keras
from small_study import compiled, study_of

other = keras.Sequential([keras.Input((8,))] + [keras.layers.Dense(4) for _ in range(5)])


def build_model(trial):
    model = keras.Sequential(other.layers)
    model.add(keras.layers.Dense(2))
    return compiled(model)


study = study_of(build_model)
