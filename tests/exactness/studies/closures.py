"""State in closures, defaults, partials and plain objects that losses, layers and schedules use."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types

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
from registry import either, identical, refused, study

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


# The same in a dictionary, as people wrote before `nonlocal`.


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


class Annealed(keras.losses.Loss):
    """A loss class with attributes of its own, as one finds in repositories of losses."""

    def __init__(self):
        super().__init__(name="annealed")
        self.calls = 0
        self.smoothing = 0.3

    def call(self, y_true, y_pred):
        self.calls += 1
        self.smoothing = 0.3 * 0.9**self.calls
        truth = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), CLASSES)
        smooth = truth * (1 - self.smoothing) + self.smoothing / CLASSES
        return -tf.reduce_sum(smooth * tf.math.log(y_pred + 1e-7), axis=-1)


class Warm(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that goes by how often it was asked, instead of by the step."""

    def __init__(self):
        self.asked = 0

    def __call__(self, step):
        self.asked += 1
        return 0.1 * min(1.0, self.asked / 20)


class WithNamespace(keras.Model):
    """Keeps its bookkeeping in a SimpleNamespace and its rates in an iterator."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(layers_of())
        self.book = types.SimpleNamespace(steps=0, best=9.0)
        self.weights_of_loss = itertools.cycle([1.0, 0.5, 0.25])

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        self.book.steps += 1
        scale = next(self.weights_of_loss) / (1 + 0.02 * self.book.steps)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(crossentropy(y, self(x, training=True)))
            scaled = loss * scale
        self.book.best = min(self.book.best, float(loss))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        return {"loss": loss, "best": self.book.best}


study(
    "model-namespace-and-iterator",
    "a SimpleNamespace and an itertools.cycle of the model, in an eager train_step",
    refused("weights_of_loss", "an iterator", "index"),
    model=lambda trial: compiled(WithNamespace(), run_eagerly=True),
)


def weighted(state, y_true, y_pred):
    state[0] += 1
    return crossentropy(y_true, y_pred) / state[0] ** 0.25


study(
    "loss-partial-with-list",
    "functools.partial of a loss over a list that counts",
    identical(),
    model=lambda trial: with_loss(_named(functools.partial(weighted, [0])), run_eagerly=True),
)


def _named(function):
    function.__name__ = "weighted"
    return function


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


@dataclasses.dataclass
class Config:
    """A training's settings, which its loss changes."""

    temperature: float = 2.0
    history: list = dataclasses.field(default_factory=list)


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
