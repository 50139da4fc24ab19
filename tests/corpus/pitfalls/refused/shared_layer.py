"""One trunk for every trial."""

import keras
from small_study import compiled, study_of

trunk = keras.layers.Dense(4, name="trunk")


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), trunk, keras.layers.Dense(2)]))


study = study_of(build_model)
