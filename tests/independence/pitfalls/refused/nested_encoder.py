"""An encoder that was made once is a layer of every trial's model."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

encoder_input = keras.Input((8,))
encoder = keras.Model(
    encoder_input, keras.layers.Dense(4, name="code")(encoder_input), name="encoder"
)


def build_model(trial):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(2)(encoder(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="nested-encoder",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
