"""An initializer without a seed, made at import and used twice."""

import keras
from small_study import compiled, study_of

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
    return compiled(model)


study = study_of(build_model)
