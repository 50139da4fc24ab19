"""A builder that makes its model at its first call and keeps it."""

from __future__ import annotations

import keras
from small_study import study_of


class Builder:
    def __init__(self):
        self.model = None

    def build(self, trial):
        if self.model is None:
            self.model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        self.model.compile(
            optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        return self.model


study = study_of(Builder().build)
