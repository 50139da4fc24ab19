"""State in data: functions of the epoch, generators, samplers, files, datasets' maps, and validation."""

import csv
import itertools
import os
import random

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, batches, pairs, samples, stacked
from registry import identical, refused, study, study_callback, study_data
from sklearn.preprocessing import StandardScaler

from sweeper import Data

STEPS = SAMPLES // BATCH


@study_data(
    "epoch-function",
    "a function of the epoch that permutes by NumPy's global generator and one of its closure, and fits on",
    identical(),
)
def epoch_function(trial):
    x, y = samples()
    rng = np.random.default_rng(1)
    scaler = StandardScaler()

    def epoch_of(epoch):
        order = np.random.permutation(len(x))[rng.permutation(len(x))]
        for xs, ys in batches(x[order], y[order]):
            scaler.partial_fit(xs)
            yield scaler.transform(xs).astype("float32"), ys

    return Data(train=epoch_of)


@study_data(
    "from-generator",
    "from_generator over NumPy's global generator, and an endless one for validation that goes on",
    identical(),
    objective="val_loss",
)
def from_generators(trial):
    x, y = samples()
    rng = np.random.default_rng(3)

    def draw():
        for index in np.random.permutation(len(x)):
            yield x[index], y[index]

    def drawn_for_validation():
        while True:
            yield x[rng.integers(len(x))], y[rng.integers(len(x))]

    signature = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int64))
    train, endless = (
        tf.data.Dataset.from_generator(drawn, output_signature=signature).batch(BATCH)
        for drawn in (draw, drawn_for_validation)
    )
    return Data(train=train, steps_per_epoch=STEPS, validation=endless, validation_steps=2)


@study_data(
    "looked-at",
    "a dataset with a layer's noise, of which the factory looks at so many batches as threads happen to read",
    identical(),
)
def looked_at(trial):
    noise = keras.layers.GaussianNoise(0.5, seed=7)
    train = tf.data.Dataset.from_tensor_slices(samples()).batch(BATCH)
    train = train.map(lambda x, y: (noise(x, training=True), y))
    for _ in train.take(1 + os.getpid() % STEPS):
        pass
    return Data(train=train)


class Picked(keras.utils.PyDataset):
    """Batches of rows that Python's global generator picks, and a transform, as in many repositories."""

    def __init__(self, transform):
        super().__init__()
        self.x, self.y = samples()
        self.transform = transform

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        picked = [random.choice(range(len(self.x))) for _ in range(BATCH)]
        return self.transform(self.x[picked]), self.y[picked]


@study_data(
    "pydataset-transform",
    "a PyDataset that draws its rows, and a cutout with a generator and a list in its closure",
    identical(),
)
def cut_out(trial):
    rng = np.random.default_rng(2)
    drawn = []

    def cutout(x):
        drawn.append(int(rng.integers(FEATURES)))
        x = x.copy()
        x[:, drawn[-1]] = 0
        return x * (1 + 0.001 * len(drawn))

    return Data(train=Picked(cutout))


class Resizing(keras.utils.PyDataset):
    """Progressive noise: the sample's size in the end, driven by the data's own counter."""

    def __init__(self, x, y):
        super().__init__()
        self.x = x
        self.y = y
        self.served = 0
        self.rounds = iter(range(100))
        self.round = next(self.rounds)

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        self.served += 1
        part = slice(index * BATCH, (index + 1) * BATCH)
        features = np.where(np.arange(FEATURES) <= 1 + self.round, self.x[part], 0)
        return features.astype("float32") * (1 + 0.001 * self.served), self.y[part]

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
    refused("Data(train=…).file", "read during training", "before the training"),
    data=lambda trial: Data(train=Streamed(trial.directory / "rows.csv")),
)


class Noises:
    """Augments by NumPy, behind tf.numpy_function."""

    def __init__(self):
        self.rng = np.random.default_rng(7)

    def __call__(self, xs):
        return (xs + self.rng.normal(0, 0.2, xs.shape)).astype("float32")


@study_data(
    "dataset-map-closures",
    "a dataset's map over a tf.random.Generator, a NumPy generator and a counting tf.Variable",
    identical(),
)
def mapped(trial):
    generator = tf.random.Generator.from_seed(3)
    counts = tf.Variable(tf.zeros([CLASSES]), trainable=False)
    noises = Noises()

    def weighted(xs, ys):
        noisy = tf.numpy_function(noises, [xs], tf.float32)
        noisy.set_shape((None, FEATURES))
        counts.scatter_add(tf.IndexedSlices(tf.ones_like(ys, tf.float32), ys))
        noisy += generator.normal(tf.shape(xs), stddev=0.2)
        return noisy, ys, 1.0 / (1.0 + tf.gather(counts, ys))

    return Data(train=pairs().batch(BATCH).map(weighted))


ROTATE = keras.layers.RandomRotation(0.3)


def rows_as_images():
    return pairs().shuffle(SAMPLES).batch(BATCH)


def turn(x, y):
    images = ROTATE(tf.reshape(x, (-1, 2, 3, 1)), training=True)
    return tf.reshape(images, (-1, FEATURES)), y


@study_data(
    "dataset-map-random",
    "a random layer of the module and tf.random.normal in a dataset's map, which reads ahead",
    identical(),
)
def rotated(trial):
    def blur(x, y):
        x, y = turn(x, y)
        return x + tf.random.normal(tf.shape(x), stddev=0.1), y

    images = rows_as_images().map(blur, num_parallel_calls=tf.data.AUTOTUNE)
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
        train=rows_as_images().map(turn).repeat().prefetch(4), steps_per_epoch=STEPS
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


class KeepsRunning(keras.metrics.Metric):
    """Never resets its total, and counts resets in Python."""

    def __init__(self):
        super().__init__(name="running")
        self.total = self.add_weight(initializer="zeros", name="total")
        self.resets = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(y_pred[:, 0]))

    def reset_state(self):
        self.resets += 1

    def result(self):
        return self.total / (1.0 + self.resets)


class ValidatesItself(keras.callbacks.Callback):
    """Draws a random part of held-out data at every epoch's end, and keeps the best."""

    def __init__(self, x, y):
        super().__init__()
        self.x = x
        self.y = y
        self.best = None

    def on_epoch_end(self, epoch, logs=None):
        rows = np.random.choice(len(self.x), 8, replace=False)
        loss = self.model.test_on_batch(self.x[rows], self.y[rows], return_dict=True)["loss"]
        if self.best is None or loss < self.best:
            self.best = float(loss)
        else:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.7


study(
    "validation",
    "a shuffled dataset that repeats, a metric that counts its resets, a callback with its own test",
    identical(),
    model=lambda trial: stacked(metrics=[KeepsRunning()], run_eagerly=True),
    data=lambda trial: Data(
        train=samples(),
        batch_size=BATCH,
        validation=pairs(seed=4, count=48).shuffle(48, seed=2).batch(BATCH).repeat(),
        validation_steps=3,
    ),
    callbacks=lambda trial: [ValidatesItself(*samples(4, 32))],
    objective="val_loss",
)
