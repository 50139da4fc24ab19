"""State in data: functions of the epoch, from_generator, and a PyDataset's transform."""

from __future__ import annotations

import functools
import random

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, compiled, layers_of, samples
from registry import either, identical, study

from sweeper import Data

STEPS = SAMPLES // BATCH


def batches(x, y):
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def epoch_with_global_numpy(trial):
    x, y = samples()

    def epoch_of(epoch):
        order = np.random.permutation(len(x))
        return batches(x[order], y[order])

    return Data(train=epoch_of)


study(
    "epoch-function-global-numpy",
    "a function of the epoch that permutes by NumPy's global generator",
    either("epoch_of"),
    data=epoch_with_global_numpy,
)


def epoch_with_closure(trial):
    x, y = samples()
    rng = np.random.default_rng(1)

    def epoch_of(epoch):
        order = rng.permutation(len(x))
        return batches(x[order], y[order])

    return Data(train=epoch_of)


study(
    "epoch-function-closure-generator",
    "a function of the epoch that draws from a generator of its closure, from epoch to epoch",
    either("epoch_of"),
    data=epoch_with_closure,
)


def epoch_mixup(trial):
    x, y = samples()
    y = keras.utils.to_categorical(y, CLASSES)
    rng = np.random.RandomState(3)

    def mixed(epoch):
        for xs, ys in batches(x, y):
            lam = rng.beta(0.4, 0.4)
            other = rng.permutation(len(xs))
            mix = (lam * xs + (1 - lam) * xs[other]).astype("float32")
            yield mix, (lam * ys + (1 - lam) * ys[other]).astype("float32")

    return Data(train=mixed)


study(
    "mixup-by-epoch-function",
    "mixup with a RandomState of the closure, drawn between batches",
    either("mixed"),
    model=lambda trial: compiled(keras.Sequential(layers_of()), loss="categorical_crossentropy"),
    data=epoch_mixup,
)


def epoch_with_counter(trial):
    x, y = samples()
    seen = {"epochs": 0}

    def curriculum(epoch):
        seen["epochs"] += 1
        noise = 0.5 / seen["epochs"]
        rng = np.random.default_rng(seen["epochs"])
        return batches((x + noise * rng.normal(size=x.shape)).astype("float32"), y)

    return Data(train=curriculum)


study(
    "epoch-function-counter",
    "a curriculum that counts the epochs itself instead of taking the epoch that it is given",
    either("curriculum"),
    data=epoch_with_counter,
)


def from_generator_global(trial):
    x, y = samples()

    def draw():
        for index in np.random.permutation(len(x)):
            yield x[index], y[index]

    signature = (
        tf.TensorSpec((FEATURES,), tf.float32),
        tf.TensorSpec((), tf.int64),
    )
    dataset = tf.data.Dataset.from_generator(draw, output_signature=signature)
    return Data(train=dataset.batch(BATCH), steps_per_epoch=STEPS)


study(
    "from-generator-global-numpy",
    "Dataset.from_generator whose generator permutes by NumPy's global generator",
    either("generator"),
    data=from_generator_global,
)


def from_generator_closure(trial):
    x, y = samples()
    rng = random.Random(5)

    def draw():
        order = list(range(len(x)))
        rng.shuffle(order)
        for index in order:
            yield x[index], y[index]

    signature = (
        tf.TensorSpec((FEATURES,), tf.float32),
        tf.TensorSpec((), tf.int64),
    )
    dataset = tf.data.Dataset.from_generator(draw, output_signature=signature)
    return Data(train=dataset.batch(BATCH), steps_per_epoch=STEPS)


study(
    "from-generator-closure-random",
    "Dataset.from_generator whose generator shuffles by a random.Random of its closure",
    either("generator"),
    data=from_generator_closure,
)


class Transformed(keras.utils.PyDataset):
    """A PyDataset that takes a transform, as in many repositories."""

    def __init__(self, x, y, transform, **options):
        super().__init__(**options)
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x) // BATCH

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        return self.transform(self.x[part]), self.y[part]


def jitter(rng, x):
    return (x + rng.normal(0, 0.2, x.shape)).astype("float32")


study(
    "pydataset-transform-partial",
    "a PyDataset's transform=partial(jitter, rng)",
    either("transform"),
    data=lambda trial: Data(
        train=Transformed(*samples(), functools.partial(jitter, np.random.default_rng(2)))
    ),
)


def jitter_globally(x):
    return (x + np.random.normal(0, 0.2, x.shape)).astype("float32")


study(
    "pydataset-transform-global-numpy",
    "a PyDataset's transform= that draws from NumPy's global generator",
    identical(),
    data=lambda trial: Data(train=Transformed(*samples(), jitter_globally)),
)


def closure_transform(trial):
    rng = np.random.default_rng(2)
    drawn = []

    def cutout(x):
        drawn.append(int(rng.integers(FEATURES)))
        x = x.copy()
        x[:, drawn[-1]] = 0
        return x * (1 + 0.001 * len(drawn))

    return Data(train=Transformed(*samples(), cutout))


study(
    "pydataset-transform-closure",
    "a cutout transform with a generator and a list in its closure",
    either("cutout"),
    data=closure_transform,
)
