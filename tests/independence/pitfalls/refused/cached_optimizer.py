"""One optimizer a name and rate."""

from __future__ import annotations

import functools

import keras
from small_study import study_of


@functools.lru_cache
def optimizer_of(name, rate):
    return {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[name](rate)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    name = trial.suggest_categorical("optimizer", ["adam", "sgd"])
    model.compile(
        optimizer=optimizer_of(name, 0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


study = study_of(build_model)
