"""What nothing trains, made at the top of the file: adapted layers, tables, arrays, losses, a frozen teacher."""

import copy
import functools

import keras
import numpy as np
import tensorflow as tf
from small_study import study_of

from sweeper import Data

WORDS = keras.Input((1,), dtype="string")
VECTORIZE = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
VECTORIZE.adapt(["a b c", "b c d"])
FLATTEN = keras.layers.Flatten()
RELU = keras.layers.ReLU()
NORMALIZE = keras.layers.Normalization(name="normalize")
NORMALIZE.adapt(np.random.default_rng(0).normal(size=(32, 8)))
TEACHER = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)], name="teacher")
TEACHER.trainable = False
BASE = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)], name="base")


class Scaler(tf.Module):
    """Holds a table and nothing that is trained."""

    def __init__(self):
        super().__init__()
        self.mean = np.zeros(8, "float32")
        self.deviation = np.ones(8, "float32")

    def __call__(self, x):
        return (x - self.mean) / self.deviation


SCALER = Scaler()


class Distilled(keras.layers.Layer):
    """Uses what is constant in its call."""

    def __init__(self):
        super().__init__()
        self.scaler = SCALER
        self.teacher = TEACHER
        self.head = keras.layers.Dense(2)

    def call(self, x):
        x = self.scaler(x)
        return self.head(x) - self.teacher(x)


@functools.cache
def first_weights(units):
    numbers = np.random.default_rng(units)
    return numbers.normal(size=(8, units)).astype("float32"), np.zeros(units, "float32")


class Focal(keras.losses.Loss):
    """A loss without state."""

    def __init__(self, gamma=2.0):
        super().__init__(name="focal")
        self.gamma = gamma

    def call(self, y_true, y_pred):
        chance = keras.ops.take_along_axis(y_pred, keras.ops.cast(y_true, "int32"), axis=-1)
        bias = TEACHER.layers[0].bias
        return -((1 - chance - bias[0]) ** self.gamma) * keras.ops.log(chance)


LOSSES = {"focal": Focal(), "plain": keras.losses.SparseCategoricalCrossentropy()}


def build_model(trial):
    trunk = keras.layers.Dense(8)
    x = FLATTEN(keras.layers.Embedding(20, 2)(VECTORIZE(WORDS)))
    x = copy.copy(BASE)(trunk(RELU(NORMALIZE(x))))  # Keras copies all of a model
    trunk.set_weights(first_weights(8))
    model = keras.Model(WORDS, Distilled()(x))
    model.compile(optimizer="adam", loss=LOSSES[trial.suggest_categorical("loss", ["focal"])])
    return model


def load_data(trial):
    return Data(train=(tf.constant([["a b"], ["c d"]]), tf.constant([0, 1])))


study = study_of(build_model, data=load_data)
