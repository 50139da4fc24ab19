"""NumPy data loaded once, when the file is imported."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

x = np.zeros((32, 8), "float32")
y = np.zeros(32, "int32")
DATA = Data(train=(x, y), batch_size=8)


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    return DATA


study = Study(
    name="data-once",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
