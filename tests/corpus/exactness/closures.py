"""State in closures, defaults and plain objects that losses, layers, callbacks and their parts use."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from pieces import CLASSES, crossentropy, stacked
from registry import identical, refused, study_callback, study_model


class Drifting(keras.regularizers.Regularizer):
    """A regularizer with a variable of its own."""

    def __init__(self):
        self.strength = tf.Variable(0.0, trainable=False)

    def __call__(self, weights):
        self.strength.assign_add(0.001)
        return self.strength * tf.reduce_sum(weights**2)


@study_model(
    "closures-of-a-traced-model",
    "variables, a SeedGenerator and a used generator that a loss, layers and their parts close over",
    identical(),
)
def build_traced(trial):
    gamma = tf.Variable(0.0, trainable=False)
    seeds = keras.random.SeedGenerator(11)
    rng = np.random.default_rng(2)

    def focal(y_true, y_pred):
        gamma.assign_add(0.05)
        truth = tf.one_hot(tf.cast(tf.reshape(y_true, [-1]), tf.int32), CLASSES)
        chance = tf.reduce_sum(truth * y_pred, axis=-1)
        return -((1.0 - chance) ** gamma) * tf.math.log(chance + 1e-7)

    def noisy(x):
        return x + 0.3 * keras.random.normal(keras.ops.shape(x), seed=seeds)

    def random_init(shape, dtype=None):
        return rng.normal(0, 0.3, shape).astype("float32")

    first = keras.layers.Dense(
        8, "tanh", kernel_initializer=random_init, kernel_regularizer=Drifting()
    )
    return stacked(keras.layers.Lambda(noisy), first=first, loss=focal)


@study_model(
    "loss-closure-counter",
    "a nonlocal counter in the closure of a loss, in a model that runs eagerly",
    identical(),
)
def build_counting_loss(trial):
    calls = 0

    def warming(y_true, y_pred):
        nonlocal calls
        calls += 1
        return crossentropy(y_true, y_pred) * min(1.0, calls / 15)

    return stacked(loss=warming, run_eagerly=True)


class Curriculum:
    """The owner of a bound method that serves as a loss."""

    __slots__ = ("factors", "level", "trace")

    def __init__(self, *factors):
        self.factors = factors
        self.level = 0.2
        self.trace = np.zeros(4)

    def loss(self, y_true, y_pred):
        self.level = min(1.0, self.level + 0.05)
        self.trace[:-1] = self.trace[1:]
        self.trace[-1] = self.level
        factor = np.prod([factor() for factor in self.factors])
        return crossentropy(y_true, y_pred) * self.level * factor + float(self.trace.sum()) * 1e-2


@study_model(
    "loss-in-slots-defaults-and-attributes",
    "a bound method as the loss: its owner has __slots__, its functions a default and an attribute",
    identical(),
)
def build_curriculum(trial):
    def remembered(memory={}):  # noqa: B006 - that is what people do
        memory["n"] = memory.get("n", 0) + 1
        return 0.5 + 1 / memory["n"]

    def counted():
        counted.calls += 1
        return 1 / (1 + 0.1 * counted.calls)

    counted.calls = 0
    return stacked(loss=Curriculum(remembered, counted).loss, run_eagerly=True)


class Augmenter:
    """Mixes up a batch with numbers of its own."""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return (x.numpy() + self.rng.normal(0, 0.02 * self.calls, x.shape)).astype("float32")


@study_model(
    "py-function-object",
    "a Python object with a RandomState and a counter behind tf.py_function",
    identical(),
)
def build_py_function(trial):
    augment = Augmenter(4)

    def through(x):
        noisy = tf.py_function(augment, [x], tf.float32)
        noisy.set_shape(x.shape)
        return tf.stop_gradient(noisy - x) + x

    return stacked(before=[keras.layers.Lambda(through, output_shape=lambda shape: shape)])


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
