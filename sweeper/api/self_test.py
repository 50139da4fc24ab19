"""Study of the self-test of an environment: one small trial that `sweeper check` interrupts and compares.

It uses what depends on private names of Keras and TensorFlow: dropout and noise (seed generators),
batch normalization, a learning-rate schedule, an optimizer with slots and averages, Keras's and an own
callback, Keras's global random generator, and a shuffled ``tf.data`` pipeline.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.api.study import Study
from sweeper.train.data import Data


class _Counting(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback with a counter and a random number that its own state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.drawn: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self.batches += 1
        if self.batches % 4 == 0:
            self.drawn.append(float(keras.random.uniform(())))


def _model(_trial: Any) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 30)
    model.compile(
        keras.optimizers.Adam(schedule, use_ema=True),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def _data(_trial: Any) -> Data:
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(48, 6)).astype("float32")
    labels = generator.integers(0, 3, 48)
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(32, seed=5).batch(8)
    return Data(train=batches, validation=(inputs, labels), batch_size=8)


def _callbacks(_trial: Any) -> list[keras.callbacks.Callback]:
    return [_Counting(), keras.callbacks.EarlyStopping(monitor="loss", patience=9)]


study = Study(
    name="self-test",
    model=_model,
    data=_data,
    callbacks=_callbacks,
    objective="val_loss",
    epochs=3,
    trials=1,
    sampler="random",
)
