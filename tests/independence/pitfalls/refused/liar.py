"""A layer that says it equals everything."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Liar(keras.layers.Dense):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1

    @property
    def weights_of_others(self):
        raise RuntimeError("not before training")


liar = Liar(4, name="liar")


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), liar, keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="liar",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
