"""State in data: samplers, files, queues and buffers that are read on, and datasets' maps."""

import csv
import itertools
import random

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, pairs, samples
from registry import either, identical, refused, study, study_callback, study_data

from sweeper import Data

STEPS = SAMPLES // BATCH


class Resizing(keras.utils.PyDataset):
    """Progressive noise: the sample's size in the end, driven by the data's own counter."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y
        self.served = 0
        self.rounds = iter(range(100))
        self.round = next(self.rounds)

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        self.served += 1
        part = slice(index * BATCH, (index + 1) * BATCH)
        kept = np.where(np.arange(FEATURES) <= 1 + self.round, self.x[part], 0)
        return kept.astype("float32") * (1 + 0.001 * self.served), self.y[part]

    def on_epoch_end(self):
        self.round = next(self.rounds)


study(
    "pydataset-progressive",
    "a PyDataset that counts what it serves and holds an iterator of rounds",
    refused("rounds", "an iterator", "index", by=2),
    data=lambda trial: Data(train=Resizing(*samples()), shuffle=False),
)


class Streamed:
    """Reads lines of a file that is open, where it stands, from epoch to epoch."""

    def __init__(self, path):
        with path.open("w") as file:
            for x, y in zip(*samples(count=200), strict=True):
                csv.writer(file).writerow([*x.tolist(), int(y)])
        self.file = path.open()
        self.rows = csv.reader(self.file)

    def __call__(self, epoch):
        for _ in range(STEPS):
            rows = np.array(list(itertools.islice(self.rows, BATCH)), "float32")
            yield rows[:, :-1], rows[:, -1].astype("int64")


study(
    "open-file-read-on",
    "a csv reader over an open file, read on from epoch to epoch",
    refused("Data(train=…).file", "read during training", "in the factory", by=2),
    data=lambda trial: Data(train=Streamed(trial.directory / "rows.csv")),
)


@study_data(
    "dataset-map-closure-generator",
    "a dataset's map with a tf.random.Generator in its closure",
    either("map"),
)
def mapped_generator(trial):
    generator = tf.random.Generator.from_seed(3)

    def jittered(xs, ys):
        return xs + generator.normal(tf.shape(xs), stddev=0.2), ys

    return Data(train=pairs().batch(BATCH).map(jittered))


class Noises:
    """Augments by NumPy, behind tf.numpy_function."""

    def __init__(self):
        self.rng = np.random.default_rng(7)

    def __call__(self, xs):
        return (xs + self.rng.normal(0, 0.2, xs.shape)).astype("float32")


@study_data(
    "dataset-map-numpy-function",
    "a dataset's map through tf.numpy_function into an object with a generator",
    either("map"),
)
def mapped_python(trial):
    noises = Noises()

    def jittered(xs, ys):
        noisy = tf.numpy_function(noises, [xs], tf.float32)
        noisy.set_shape((None, FEATURES))
        return noisy, ys

    return Data(train=pairs().batch(BATCH).map(jittered))


@study_data(
    "dataset-map-closure-variable",
    "a dataset's map that counts classes in a tf.Variable and weighs by it",
    either("map"),
)
def tabled(trial):
    counts = tf.Variable(tf.zeros([CLASSES]), trainable=False)

    def weighted(xs, ys):
        counts.scatter_add(tf.IndexedSlices(tf.ones_like(ys, tf.float32), ys))
        return xs, ys, 1.0 / (1.0 + tf.gather(counts, ys))

    return Data(train=pairs().batch(BATCH).map(weighted))


class Pairs(keras.utils.PyDataset):
    """Batches of rows that Python's global generator picks, as metric learning picks its pairs."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        x, y = samples()
        picked = [random.choice(range(len(x))) for _ in range(BATCH)]
        return x[picked], y[picked]


study(
    "pydataset-global-random",
    "a PyDataset, each of whose batches is drawn from Python's global generator",
    identical(),
    data=lambda trial: Data(train=Pairs()),
)


ROTATE = keras.layers.RandomRotation(0.3)


def rows_as_images():
    return pairs().shuffle(SAMPLES).batch(BATCH)


def turn(x, y):
    images = ROTATE(tf.reshape(x, (-1, 2, 3, 1)), training=True)
    return tf.reshape(images, (-1, FEATURES)), y


@study_data(
    "dataset-map-random-layer",
    "a random layer of the module in a dataset's map, which reads ahead",
    identical(),
)
def rotated(trial):
    images = rows_as_images().map(turn, num_parallel_calls=tf.data.AUTOTUNE)
    return Data(train=images.prefetch(tf.data.AUTOTUNE))


study(
    "dataset-cached-random-layer",
    "a random layer of the module in a dataset's map before a cache, which keeps the first epoch's",
    refused("writes a variable"),
    data=lambda trial: Data(train=pairs().batch(BATCH).map(turn).cache()),
)
study(
    "dataset-endless-random-layer",
    "a random layer of the module in an endless dataset, whose epochs end before it is read",
    identical(),
    data=lambda trial: Data(
        train=rows_as_images().map(turn).repeat().prefetch(4), steps_per_epoch=5
    ),
)


NUMBERS = keras.random.SeedGenerator(7)


@study_callback(
    "dataset-generator-in-callback",
    "a SeedGenerator in a dataset's map that a callback draws from as well",
    refused("is written by a function of a dataset"),
    data=lambda trial: Data(
        train=rows_as_images().map(lambda x, y: (x + keras.random.uniform((), seed=NUMBERS), y))
    ),
)
class Draws(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        keras.random.uniform((), seed=NUMBERS)


@study_data(
    "dataset-map-random-op", "tf.random.normal in a dataset's map, which reads ahead", identical()
)
def blurred(trial):
    def blur(x, y):
        return x + tf.random.normal(tf.shape(x), stddev=0.1), y

    images = rows_as_images().map(blur, num_parallel_calls=tf.data.AUTOTUNE)
    return Data(train=images.prefetch(tf.data.AUTOTUNE))
