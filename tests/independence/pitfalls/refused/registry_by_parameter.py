"""Backbones kept by their size, so that one of a size is made only once."""

from __future__ import annotations

import keras
from small_study import study_of

BACKBONES = {}


def backbone_of(units):
    if units not in BACKBONES:
        BACKBONES[units] = keras.layers.Dense(units, activation="relu", name=f"backbone_{units}")
    return BACKBONES[units]


def build_model(trial):
    units = trial.suggest_int("units", 4, 64)
    model = keras.Sequential([keras.Input((8,)), backbone_of(units), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


study = study_of(build_model)
