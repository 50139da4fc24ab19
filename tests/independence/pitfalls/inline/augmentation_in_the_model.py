"""Random layers at the top of the file, in front of each trial's network, as published scripts have them."""

from __future__ import annotations

import keras
import numpy as np
from small_study import study_of

from sweeper import Data

x = np.random.default_rng(0).normal(size=(32, 4, 4, 1)).astype("float32")
augmentation = keras.Sequential(
    [keras.layers.Normalization(), keras.layers.RandomFlip("horizontal")], name="augmentation"
)
augmentation.layers[0].adapt(x)


def build_model(trial):
    inputs = keras.Input((4, 4, 1))
    outputs = keras.layers.Dense(2)(keras.layers.Flatten()(augmentation(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    return Data(train=(x, np.arange(32) % 2))


study = study_of(build_model, data=load_data)
