"""A function that makes the factory makes the trunk as well, once."""

import keras
from small_study import compiled, study_of


def with_trunk(units):
    trunk = keras.layers.Dense(units, name="trunk")

    def build(trial):
        return compiled(keras.Sequential([keras.Input((8,)), trunk, keras.layers.Dense(2)]))

    return build


study = study_of(with_trunk(4))
