"""State in closures, defaults, partials and plain objects that losses, layers and schedules use."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from pieces import (
    CLASSES,
    compiled,
    crossentropy,
    layers_of,
    with_loss,
)
from registry import either, identical, study

# A tf.Variable that a loss closes over: a focal loss whose gamma moves with every call.


def build_focal(trial):
    gamma = tf.Variable(0.0, trainable=False)

    def focal(y_true, y_pred):
        gamma.assign_add(0.05)
        truth = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), CLASSES)
        chance = tf.reduce_sum(truth * y_pred, axis=-1)
        return -((1.0 - chance) ** gamma) * tf.math.log(chance + 1e-7)

    return with_loss(focal)


study(
    "loss-closure-variable",
    "a tf.Variable in the closure of a loss, which the loss itself moves",
    identical(),
    model=build_focal,
)


# A counter in the closure of a loss of an eager model: warm-up of a penalty.


def build_counting_loss(trial):
    calls = 0

    def warming(y_true, y_pred):
        nonlocal calls
        calls += 1
        return crossentropy(y_true, y_pred) * min(1.0, calls / 15)

    return with_loss(warming, run_eagerly=True)


study(
    "loss-closure-counter",
    "a nonlocal counter in the closure of a loss, in a model that runs eagerly",
    identical(),
    model=build_counting_loss,
)


def build_seeded_lambda(trial):
    seeds = keras.random.SeedGenerator(11)

    def noisy(x):
        return x + 0.3 * keras.random.normal(keras.ops.shape(x), seed=seeds)

    layers = layers_of()
    layers.insert(2, keras.layers.Lambda(noisy))
    return compiled(keras.Sequential(layers))


study(
    "lambda-closure-seed-generator",
    "a SeedGenerator in the closure of a Lambda layer",
    identical(),
    model=build_seeded_lambda,
)


class Augmenter:
    """Mixes up a batch with numbers of its own."""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return (x.numpy() + self.rng.normal(0, 0.02 * self.calls, x.shape)).astype("float32")


def build_py_function(trial):
    augment = Augmenter(4)

    def through(x):
        noisy = tf.py_function(augment, [x], tf.float32)
        noisy.set_shape(x.shape)
        return tf.stop_gradient(noisy - x) + x

    layers = layers_of()
    layers.insert(1, keras.layers.Lambda(through, output_shape=lambda shape: shape))
    return compiled(keras.Sequential(layers))


study(
    "py-function-object",
    "a Python object with a RandomState and a counter behind tf.py_function",
    either("augment"),
    model=build_py_function,
)


def build_default_argument(trial):
    def remembered(y_true, y_pred, memory={}):  # noqa: B006 - that is what people do
        memory["n"] = memory.get("n", 0) + 1
        return crossentropy(y_true, y_pred) * (0.5 + 1 / memory["n"])

    return with_loss(remembered, run_eagerly=True)


study(
    "loss-default-argument",
    "a mutable default argument of a loss, which counts",
    identical(),
    model=build_default_argument,
)


def build_function_attribute(trial):
    def counted(y_true, y_pred):
        counted.calls += 1
        return crossentropy(y_true, y_pred) / (1 + 0.1 * counted.calls)

    counted.calls = 0
    return with_loss(counted, run_eagerly=True)


study(
    "loss-function-attribute",
    "a loss that counts its calls in an attribute of the function itself",
    identical(),
    model=build_function_attribute,
)


class Curriculum:
    """The owner of a bound method that serves as a loss."""

    __slots__ = ("level", "trace")

    def __init__(self):
        self.level = 0.2
        self.trace = np.zeros(4)

    def loss(self, y_true, y_pred):
        self.level = min(1.0, self.level + 0.05)
        self.trace[:-1] = self.trace[1:]
        self.trace[-1] = self.level
        return crossentropy(y_true, y_pred) * self.level + float(self.trace.sum()) * 1e-2


study(
    "loss-bound-method-slots",
    "a bound method as the loss; its owner has __slots__ and counts",
    identical(),
    model=lambda trial: with_loss(Curriculum().loss, run_eagerly=True),
)
