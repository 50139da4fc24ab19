"""A study of MobileNetV2 on small random pictures, whose tracing takes longer than its short epochs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from sweeper import Data, Study


def build_model(trial: Any) -> keras.Model:
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=10)
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def load_data(trial: Any) -> Data:
    del trial
    generator = np.random.default_rng(0)
    x, y = generator.random((192, 32, 32, 3), "float32"), generator.integers(0, 10, 192)
    return Data(train=(x[:128], y[:128]), validation=(x[128:], y[128:]), batch_size=16)


study = Study(
    name="mobilenet",
    model=build_model,
    data=load_data,
    objective="val_loss",
    epochs=3,
    trials=4,
    sampler="random",
)
