"""A frozen teacher, held by the model and used by the loss."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study

teacher = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)], name="teacher")
teacher.trainable = False


class Distiller(keras.Model):
    def __init__(self, teacher, student):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def call(self, x):
        return self.student(x) - self.teacher(x)


def matched(y_true, y_pred):
    bias = teacher.layers[0].bias
    return keras.ops.mean((y_pred - bias) ** 2, axis=-1)


def build_model(trial):
    model = Distiller(teacher, keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)]))
    model.build((None, 8))
    model.compile(optimizer="adam", loss=matched)
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


study = Study(
    name="frozen-teacher",
    model=build_model,
    data=load_data,
    objective="loss",
    epochs=1,
    trials=2,
)
