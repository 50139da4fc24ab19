"""A learned temperature in a loss that every trial is given."""

from __future__ import annotations

import keras
from small_study import study_of


class Tempered(keras.losses.Loss):
    def __init__(self):
        super().__init__(name="tempered")
        self.temperature = keras.Variable(1.0, name="temperature")

    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred / self.temperature, from_logits=True
        )


tempered = Tempered()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile(optimizer="adam", loss=tempered)
    return model


study = study_of(build_model)
