"""A PyDataset made once that draws each batch from a generator of its own."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Noise(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.numbers = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.numbers.normal(size=(8, 8)), np.zeros(8, "int32")


NOISE = Noise()


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    return Data(train=NOISE)


study = Study(
    name="dataset-with-a-generator",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
