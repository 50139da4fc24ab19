"""A PyDataset made once of which nothing changes: its methods only read."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


BATCHES = Batches(np.zeros((32, 8), "float32"), np.zeros(32, "int32"), 8)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    return Data(train=BATCHES, validation=BATCHES)


study = Study(
    name="dataset-once",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
