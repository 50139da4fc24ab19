"""A frozen network with batch normalization in it."""

from __future__ import annotations

import keras
from small_study import compiled, study_of

backbone = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization()], name="backbone"
)
backbone.compile(optimizer="adam", loss="mse")
backbone.trainable = False


def build_model(trial):
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(inputs, training=False)))
    return compiled(model)


study = study_of(build_model)
