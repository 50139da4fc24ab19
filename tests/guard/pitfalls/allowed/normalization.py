"""Normalization adapted at import."""

import keras
import numpy as np
from small_study import compiled, study_of

normalize = keras.layers.Normalization(name="normalize")
normalize.adapt(np.random.default_rng(0).normal(size=(32, 8)))


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), normalize, keras.layers.Dense(2)]))


study = study_of(build_model)
