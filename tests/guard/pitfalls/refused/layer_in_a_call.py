"""A layer's call uses a layer of the module, which the first trial builds."""

import keras
from small_study import compiled, study_of

projection = keras.layers.Dense(4, name="projection")


class Projected(keras.layers.Layer):
    def call(self, x):
        return projection(x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], 4)


def build_model(trial):
    return compiled(keras.Sequential([keras.Input((8,)), Projected(), keras.layers.Dense(2)]))


study = study_of(build_model)
