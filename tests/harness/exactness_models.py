"""Tiny models for the exactness suite: every optimizer, random layer and way to train once."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers
from keras.optimizers import schedules
from trainings import digits, small_data

from sweeper import Data

STEPS = 4
"""In an epoch of `data`; of validation there are 3."""


def data(**options):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * 8, 8)).astype("float32")
    y = generator.integers(0, 4, STEPS * 8)
    settings = {"batch_size": 8, "validation": (x[:12], y[:12])}
    return Data(train=(x, y), **{**settings, "validation_batch_size": 4, **options})


def unvalidated():
    return data(validation=None, validation_batch_size=None)


def weighted_data():
    return data(class_weight={0: 0.5, 2: 3.0})


def compiled(optimizer, *middle, first=(), dtype=None, **options):
    """Input, ``first``, a dense layer in ``dtype`` if any, ``middle`` and a softmax, compiled."""
    hidden = [] if dtype is None else [layers.Dense(6, activation="relu", dtype=dtype)]
    model = keras.Sequential(
        [keras.Input((8,)), *first, *hidden, *middle, layers.Dense(4, activation="softmax")]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", **options)
    return model


def as_sequence():
    return [layers.Reshape((4, 2))]


def as_image():
    return [layers.Reshape((4, 2, 1))]


class GlobalNoise(layers.Layer):
    """Draws from Keras's global generator."""

    def __init__(self, stddev=0.1):
        super().__init__()
        self.stddev = stddev

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), stddev=self.stddev) if training else x


def multi_optimizer():
    by_path = optimizers.OptimizerMap(optimizers.SGD(0.05, momentum=0.9))
    by_path[".*kernel"] = optimizers.Adam(0.02)
    return compiled(optimizers.MultiOptimizer(by_path), layers.Dropout(0.2))


def every_optimizer():
    """Each variable has an optimizer of its own: all that keep nothing but slots and a count."""
    by_path = optimizers.OptimizerMap(optimizers.SGD(schedules.InverseTimeDecay(0.05, 5, 0.5)))
    kinds = [
        optimizers.Adadelta(0.5),
        optimizers.Adagrad(schedules.ExponentialDecay(0.1, 4, 0.8)),
        optimizers.Adamax(0.02),
        optimizers.Adafactor(0.05),
        optimizers.Nadam(0.02),
        optimizers.Ftrl(0.1, l2_regularization_strength=0.01),
        optimizers.Lion(0.01),
        optimizers.Lamb(0.02),
        optimizers.RMSprop(0.01, centered=True),
        optimizers.Muon(0.02),
    ]
    middle = []
    for number, optimizer in enumerate(kinds):
        # Muon has other slots for a matrix than for a vector.
        use_bias = isinstance(optimizer, optimizers.Muon)
        middle.append(layers.Dense(2, use_bias=use_bias, name=f"of_{number}"))
        by_path[rf".*\bof_{number}/.*"] = optimizer
    return compiled(optimizers.MultiOptimizer(by_path), *middle)


def every_random_layer():
    return compiled(
        optimizers.SGD(0.05),
        layers.AlphaDropout(0.2),
        layers.GaussianDropout(0.3),
        layers.GaussianNoise(0.1),
        layers.Dropout(0.3),
        GlobalNoise(),
        first=[
            *as_image(),
            layers.RandomFlip(),
            *as_sequence(),
            layers.SpatialDropout1D(0.3),
            layers.SimpleRNN(3, dropout=0.2, recurrent_dropout=0.2),
        ],
    )


def averaged():
    optimizer = optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)
    return compiled(optimizer, layers.BatchNormalization())


def nadam_averaged():
    optimizer = optimizers.Nadam(0.02, use_ema=True, ema_momentum=0.8)
    return compiled(optimizer, layers.Dropout(0.2))


def mixed_precision():
    optimizer = optimizers.LossScaleOptimizer(
        optimizers.Adam(schedules.CosineDecayRestarts(0.02, 5)), 2.0**10, dynamic_growth_steps=3
    )
    return compiled(optimizer, layers.Dropout(0.2, dtype="mixed_float16"), dtype="mixed_float16")


class Gan(keras.Model):
    """A generator and a discriminator, each with an optimizer and a metric of its own."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(8)])
        self.discriminator = keras.Sequential(
            [keras.Input((8,)), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.seeds = keras.random.SeedGenerator(4)
        self.g_loss = keras.metrics.Mean("g_loss")
        self.d_loss = keras.metrics.Mean("d_loss")

    def compile(self, g_optimizer, d_optimizer):
        super().compile()
        self.optimizer = g_optimizer
        self.d_optimizer = d_optimizer

    @property
    def metrics(self):
        return [self.d_loss]

    def _losses_of(self, real, training):
        noise = keras.random.normal((keras.ops.shape(real)[0], 3), seed=self.seeds)
        fake = self.discriminator(self.generator(noise), training=training)
        true = self.discriminator(real, training=training)
        d_loss = keras.ops.mean(keras.ops.softplus(fake) + keras.ops.softplus(-true))
        return keras.ops.mean(keras.ops.softplus(-fake)), d_loss

    def train_step(self, batch):
        real = batch[0]
        with tf.GradientTape(persistent=True) as tape:
            g_loss, d_loss = self._losses_of(real, training=True)
        for loss, part, optimizer in (
            (d_loss, self.discriminator, self.d_optimizer),
            (g_loss, self.generator, self.optimizer),
        ):
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        self.g_loss.update_state(g_loss)
        self.d_loss.update_state(d_loss)
        return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}

    def test_step(self, batch):
        g_loss, _ = self._losses_of(batch[0], training=False)
        return {"g_loss": g_loss}


def gan():
    model = Gan()
    model.compile(optimizers.Adam(0.02), optimizers.RMSprop(0.01, momentum=0.5))
    return model


class Annealed(keras.Model):
    """Runs eagerly, and counts on itself in plain numbers, lists and a NumPy generator."""

    def __init__(self):
        super().__init__()
        self.body = layers.Dense(4, activation="softmax")
        self.beta = 1.0
        self.seen = []
        self.rng = np.random.default_rng(8)

    def call(self, x):
        return self.body(x)

    def train_step(self, batch):
        x, y = batch
        self.beta *= 0.9
        self.seen.append(float(self.rng.random()))
        return super().train_step((x * self.beta + self.seen[len(self.seen) // 2], y))


def annealed():
    model = Annealed()
    model.compile(
        optimizers.Adam(0.02),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        run_eagerly=True,
    )
    return model


TRACKED = {}


class Halves:
    """Numbers that get smaller, with methods for its own state."""

    def __init__(self):
        self.last = 1.0

    def next(self):
        self.last /= 2
        return self.last

    def get_state(self):
        return self.last

    def set_state(self, state):
        self.last = state


def tracked_anew():
    TRACKED.clear()
    TRACKED.update(generator=tf.random.Generator.from_seed(3), halves=Halves())
    return dict(TRACKED)


class Sources:
    """A plain object, into which Keras does not look."""

    def __init__(self):
        self.generator = keras.random.SeedGenerator(5)


class Carrier(keras.Model):
    """Carries what is in none of Keras's lists, and lets all of it act on its weights."""

    def __init__(self, **options):
        super().__init__(**options)
        self.beta = 1.0
        self.sources = Sources()
        self.scale = keras.Variable(0.0, trainable=False, name="scale")
        self.side_optimizer = keras.optimizers.Adam(0.1)

    def train_step(self, data):
        logs = super().train_step(data)
        target = keras.random.normal((), seed=self.sources.generator)
        self.side_optimizer.apply([self.scale - target], [self.scale])
        return logs


def noisy(**options):
    inputs = keras.Input((8,))
    x = GlobalNoise(0.01)(layers.Dense(4)(inputs))
    x = layers.Dropout(0.3)(layers.BatchNormalization()(x))
    model = Carrier(inputs=inputs, outputs=layers.Activation("softmax")(x))
    optimizer = optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", **options)
    return model


def noisy_eager():
    return noisy(run_eagerly=True)


class ShufflesItself(keras.utils.PyDataset):
    """Arrays need no state of their data; this does."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(100)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = digits()
        rows = self.order[index * 34 : index * 34 + 34]
        return x[rows], y[rows]

    def on_epoch_end(self):
        self.order = self.order[::-1].copy()

    def get_state(self):
        return self.order

    def set_state(self, state):
        self.order = state


def in_few_batches():
    """Three an epoch, as the others below have them."""
    return small_data(batch_size=34)


def shuffling_itself():
    return Data(train=ShufflesItself(), validation=digits(30))


def drawing_anew():
    """A function of the epoch that shuffles by a generator which goes on from epoch to epoch."""
    drawn = np.random.default_rng(8)

    def batches(epoch):
        x, y = digits()
        order = drawn.permutation(100)
        for begin in range(0, 100, 34):
            rows = order[begin : begin + 34]
            yield x[rows], y[rows]

    return Data(train=batches, validation=digits(30))


STATEFUL = (in_few_batches, shuffling_itself, drawing_anew)
