"""A model that is built by its first batch, made once."""

from __future__ import annotations

import keras
from small_study import study_of


class Net(keras.Model):
    def __init__(self):
        super().__init__(name="net")
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(x)


net = Net()


def build_model(trial):
    net.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


study = study_of(build_model)
