"""One optimizer, with its momentum, for all trials."""

import keras
from small_study import study_of

optimizer = keras.optimizers.Adam(1e-3)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(
        optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


study = study_of(build_model)
