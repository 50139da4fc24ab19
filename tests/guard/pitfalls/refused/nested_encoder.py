"""An encoder that was made once is a layer of every trial's model."""

from __future__ import annotations

import keras
from small_study import compiled, study_of

encoder_input = keras.Input((8,))
encoder = keras.Model(
    encoder_input, keras.layers.Dense(4, name="code")(encoder_input), name="encoder"
)


def build_model(trial):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(2)(encoder(inputs))
    model = keras.Model(inputs, outputs)
    return compiled(model)


study = study_of(build_model)
