"""Kept in a variable of the thread's, lest workers share it."""

from __future__ import annotations

import threading

import keras
from small_study import compiled, study_of

_local = threading.local()


def build_model(trial):
    if not hasattr(_local, "trunk"):
        _local.trunk = keras.layers.Dense(4, name="trunk")
    model = keras.Sequential([keras.Input((8,)), _local.trunk, keras.layers.Dense(2)])
    return compiled(model)


study = study_of(build_model)
