"""A seeded initializer, a regularizer and a constraint as constants."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

INITIALIZER = keras.initializers.HeNormal(seed=3)
REGULARIZER = keras.regularizers.L2(1e-4)
CONSTRAINT = keras.constraints.MaxNorm(2.0)


def build_model(trial):
    dense = keras.layers.Dense(
        2,
        kernel_initializer=INITIALIZER,
        kernel_regularizer=REGULARIZER,
        kernel_constraint=CONSTRAINT,
    )
    model = keras.Sequential([keras.Input((8,)), dense])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="seeded-initializer",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
