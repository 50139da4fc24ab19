"""State in closures of regularizers, constraints, metrics, initializers and callbacks."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from pieces import stacked
from registry import identical, refused, study_callback, study_model


class Drifting(keras.regularizers.Regularizer):
    """A regularizer with a variable of its own."""

    def __init__(self):
        self.strength = tf.Variable(0.0, trainable=False)

    def __call__(self, weights):
        self.strength.assign_add(0.001)
        return self.strength * tf.reduce_sum(weights**2)


@study_model(
    "regularizer-variable",
    "a regularizer with a tf.Variable that grows with every call",
    identical(),
)
def build_regularized(trial):
    return stacked(first=keras.layers.Dense(8, "tanh", kernel_regularizer=Drifting()))


@study_model(
    "initializer-closure-generator",
    "a NumPy generator in the closure of an initializer, used up before training",
    identical(),
)
def build_initializer(trial):
    rng = np.random.default_rng(2)

    def random_init(shape, dtype=None):
        return rng.normal(0, 0.3, shape).astype("float32")

    return stacked(first=keras.layers.Dense(8, "tanh", kernel_initializer=random_init))


@study_callback(
    "callback-closure-cycle",
    "itertools.cycle and itertools.count in a callback's closure",
    refused("count", "an iterator", "index"),
)
def cycling_callbacks(trial):
    rates = itertools.cycle([0.1, 0.03, 0.01])
    count = itertools.count(1)

    class Cyclic(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = next(rates) / next(count) ** 0.1

    return [Cyclic()]
