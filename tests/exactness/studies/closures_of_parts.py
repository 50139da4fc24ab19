"""State in closures of regularizers, constraints, metrics, initializers and callbacks."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import tensorflow as tf
from pieces import (
    compiled,
    crossentropy,
    layers_of,
    with_loss,
)
from registry import identical, refused, study

# A tf.Variable that a loss closes over: a focal loss whose gamma moves with every call.


def build_shared_by_loss_and_callback(trial):
    weight = tf.Variable(0.0, trainable=False)

    def regularized(y_true, y_pred):
        return crossentropy(y_true, y_pred) + weight * tf.reduce_sum(y_pred**2, axis=-1)

    model = with_loss(regularized)
    model.beta = weight
    return model


class BetaAnnealing(keras.callbacks.Callback):
    """Raises a variational autoencoder's beta, as in many published scripts."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.beta.assign_add(0.02)


study(
    "beta-annealing",
    "a tf.Variable of a loss's closure that a callback raises",
    identical(),
    model=build_shared_by_loss_and_callback,
    callbacks=lambda trial: [BetaAnnealing()],
)


_handed = {}


def build_handed(trial):
    alpha = tf.Variable(1.0, trainable=False, dtype="float32")
    _handed["alpha"] = alpha
    return with_loss(lambda y, p: alpha * crossentropy(y, p))


def lowering(trial):
    alpha = _handed["alpha"]
    return [
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: alpha.assign(alpha * 0.95)
        )
    ]


study(
    "loss-weight-through-module",
    "a variable handed from the model's factory to a callback's through a module's dictionary",
    identical(),
    model=build_handed,
    callbacks=lowering,
)


class Drifting(keras.regularizers.Regularizer):
    """A regularizer with a variable of its own."""

    def __init__(self):
        self.strength = tf.Variable(0.0, trainable=False)

    def __call__(self, weights):
        self.strength.assign_add(0.001)
        return self.strength * tf.reduce_sum(weights**2)


def build_regularized(trial):
    layers = layers_of()
    layers[1] = keras.layers.Dense(8, "tanh", kernel_regularizer=Drifting())
    return compiled(keras.Sequential(layers))


study(
    "regularizer-variable",
    "a regularizer with a tf.Variable that grows with every call",
    identical(),
    model=build_regularized,
)


def build_metric_function(trial):
    seen = tf.Variable(0.0, trainable=False)

    def drifting_error(y_true, y_pred):
        seen.assign_add(1.0)
        return tf.cast(tf.reshape(y_true, [-1]), tf.float32) * seen

    return compiled(keras.Sequential(layers_of()), metrics=[drifting_error])


study(
    "metric-closure-variable",
    "a tf.Variable in the closure of a metric function",
    identical(),
    model=build_metric_function,
)


def build_initializer(trial):
    rng = np.random.default_rng(2)

    def random_init(shape, dtype=None):
        return rng.normal(0, 0.3, shape).astype("float32")

    layers = layers_of()
    layers[1] = keras.layers.Dense(8, "tanh", kernel_initializer=random_init)
    return compiled(keras.Sequential(layers))


study(
    "initializer-closure-generator",
    "a NumPy generator in the closure of an initializer, used up before training",
    identical(),
    model=build_initializer,
)


def cycling_callbacks(trial):
    rates = itertools.cycle([0.1, 0.03, 0.01])
    count = itertools.count(1)

    class Cyclic(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = next(rates) / next(count) ** 0.1

    return [Cyclic()]


study(
    "callback-closure-cycle",
    "itertools.cycle and itertools.count in a callback's closure",
    refused("count", "an iterator", "index"),
    callbacks=cycling_callbacks,
)


def generator_callbacks(trial):
    def schedule():
        rate = 0.1
        while True:
            yield rate
            rate *= 0.93

    rates = schedule()

    class Generated(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = next(rates)

    return [Generated()]
