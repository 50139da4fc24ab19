"""Callbacks for the exactness suite: Keras's own, and what users write."""

import datetime as dt
import enum
import functools
import random
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from exactness_models import TRACKED


class LearningRatePerBatch(keras.callbacks.Callback):
    """A schedule by a counter of batches over the whole training: the classic that restarts."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 * 0.9**self.count
        self.count += 1


class Phase(enum.Enum):
    """A constant."""

    WARM = 1
    COLD = 2


class Parts(enum.Flag):
    """Constants that are combined."""

    HEAD = enum.auto()
    BODY = enum.auto()


Point = namedtuple("Point", "x y")  # noqa: PYI024 - what users still write


@dataclass
class Best:
    """A plain object that a callback keeps."""

    value: float = 9e9
    seen: list[float] = field(default_factory=list)


class Collector(keras.callbacks.Callback):
    """Carries every kind of plain value, and disturbs the weights by what it carries."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory
        self.pattern = re.compile("loss", re.IGNORECASE)
        self.started = dt.timedelta(0)
        self.at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
        self.phase = Phase.WARM
        self.point = Point(0, [0.0])
        self.best = Best()
        self.rng = np.random.default_rng(5)
        self.nested = {("a", 1): [deque([0], maxlen=3)], "known": {}}
        self.counts = Counter()
        self.lists = defaultdict(list)
        self.ordered = OrderedDict(z=1.0)
        self.array = np.zeros(3, "float32")
        self.parts = Parts(0)
        self.masked = np.ma.masked_all(4)
        self.new_masked = np.ma.masked_all(1)
        self.last = np.ma.masked
        self.matrix = np.eye(2).view(np.matrix)
        self.permuted = np.zeros((2, 3, 4)).transpose(1, 0, 2)
        self.table = np.rec.array([(0.0,)], dtype=[("drawn", "f8")])
        self.records = np.zeros(2, [("drawn", "f8")])
        self.variable = keras.Variable(0.0)
        self.mean = keras.metrics.Mean()
        self.scale = functools.partial(np.multiply, 0.001)
        self.other = None

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch = keras.metrics.Mean()
        self.seeds = keras.random.SeedGenerator(epoch)

    def on_train_batch_end(self, batch, logs=None):
        drawn = float(self.rng.normal())
        self.nested["a", 1][0].append(batch)
        self.nested["known"][batch] = None
        self.counts[batch] += 1
        self.lists["drawn"].append(batch)
        self.ordered[str(batch)] = drawn
        self.ordered.move_to_end("z")
        self.array[batch % 3] += drawn
        self.variable.assign_add(drawn)
        self.mean.update_state(drawn)
        self.of_epoch.update_state(drawn + keras.random.uniform((), seed=self.seeds))
        self.point = Point(self.point.x + 1, [*self.point.y, drawn])
        self.phase = Phase.COLD if drawn > 0 else Phase.WARM
        self.parts ^= Parts.HEAD if drawn > 0 else Parts.BODY
        self.masked[batch % 4] = drawn if drawn > 0 else np.ma.masked
        self.new_masked = np.ma.append(self.new_masked[-3:], self.masked[:2])
        self.last = self.masked[batch % 4]
        self.matrix = self.matrix @ np.array([[1.0, drawn], [0.0, 1.0]]).view(np.matrix)
        self.table = np.rec.array([*self.table.tolist()[-3:], (drawn,)], dtype=self.table.dtype)
        self.permuted = self.permuted + drawn  # an array of its own, in the same order in memory
        # A view of a new array, whose base is not kept.
        self.records = np.array([(drawn,), (self.records["drawn"][0],)], self.records.dtype)[:]
        self.started += dt.timedelta(seconds=drawn)
        self.at += dt.timedelta(hours=1)
        self.best.seen.append(drawn)
        self.best.value = min(self.best.value, drawn)
        moved = (
            drawn
            + float(self.of_epoch.result())
            + float(self.mean.result())
            + float(self.array.sum())
            + self.best.value
            + len(self.parts)
            + float(np.ma.filled(self.masked.mean(), 0.5))
            + float(np.ma.filled(self.new_masked.sum(), 0.5))
            + (self.last is np.ma.masked)
            + float(self.matrix[0, 1])
            + float(self.table.drawn.mean())
            + float(self.records["drawn"].mean())
            + float(self.permuted[0, 0, 0] * self.permuted.strides[0])
        )
        if self.other is not None:
            moved += self.other.count + len(self.nested["a", 1][0])
        bias = self.model.layers[-1].bias
        bias.assign_add(keras.ops.full(bias.shape, float(self.scale(moved))))


class Patient(keras.callbacks.EarlyStopping):
    """One of Keras's own with more: it changes a setting of its base, and keeps a list."""

    def __init__(self):
        super().__init__("loss", patience=0, min_delta=0.5)
        self.keys = []

    def on_epoch_end(self, epoch, logs=None):
        self.patience += 1
        self.keys.append(epoch)
        self.model.layers[-1].bias.assign_add(
            keras.ops.full((4,), 0.01 * self.patience + len(self.keys))
        )
        super().on_epoch_end(epoch, logs)


def collectors():
    collector = Collector(Path("files"))
    schedule = LearningRatePerBatch()
    collector.other = schedule
    return [collector, schedule, Tells(), Patient()]


def sharing():
    """Two callbacks and a function that share one list and one number in a closure."""
    log = []
    count = 0

    class Writes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.log = log

        def on_train_batch_end(self, batch, logs=None):
            nonlocal count
            count += 1
            self.log.append(0.001 * count)

    class Reads(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.log = log

        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.01 + sum(self.log)

    def disturb(epoch, logs):
        nonlocal count
        count += 10 * len(log)

    return [Writes(), Reads(), keras.callbacks.LambdaCallback(on_epoch_end=disturb)]


class Warm:
    """A schedule with a memory of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, epoch, rate):
        self.calls += 1
        return rate * 0.9**self.calls


def every_one_of_keras():
    batches = {"save_weights_only": True, "save_freq": 3}
    best = {"mode": "max", "save_best_only": True, "save_freq": 5}
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5, factor=0.5),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger("epochs.csv"),
        keras.callbacks.CSVLogger("more.csv", append=True),
        keras.callbacks.ModelCheckpoint(
            "best-{epoch}.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ModelCheckpoint("batch-{batch}.weights.h5", **batches),
        keras.callbacks.ModelCheckpoint("best.keras", "accuracy", **best),
    ]


def scheduled():
    return [keras.callbacks.LearningRateScheduler(Warm())]


def swapping():
    return [keras.callbacks.SwapEMAWeights()]


def left_and_reduced():
    return [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0),
    ]


def worst_first():
    """Puts the weights of the first epoch back, whatever the losses are."""
    options = {"mode": "max", "patience": 9, "restore_best_weights": True}
    return [
        keras.callbacks.EarlyStopping("loss", **options),
        keras.callbacks.ReduceLROnPlateau("loss", 0.5, 1),
    ]


def per_batch():
    return [LearningRatePerBatch()]


class Adds(keras.callbacks.Callback):
    """Adds what it draws to the weights, in every other step."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def on_train_batch_end(self, batch, logs=None):
        if batch % 2:
            bias = self.model.layers[-1].bias
            bias.assign_add(0.01 * self.draw() * keras.ops.ones_like(bias))


class DrawsLate(keras.callbacks.Callback):
    """Calls a function of its own that draws, for the first time in the second epoch."""

    def __init__(self):
        super().__init__()
        self.draw = tf.function(lambda n: tf.random.normal((n,)))

    def on_epoch_end(self, epoch, logs=None):
        if epoch:
            self.model.layers[-1].bias.assign_add(0.01 * self.draw(tf.constant(4)))
            self.model.layers[-1].bias.assign_add(0.01 * self.draw(4))


class ReplacesGenerators(keras.callbacks.Callback):
    """Clears the session and seeds everything anew in the middle, and draws from Keras's generator."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count in (1, 6):
            keras.utils.clear_session()
            keras.utils.set_random_seed(3)
        bias = self.model.layers[-1].bias
        bias.assign_add(0.01 * keras.random.normal(bias.shape))


class Jitter(keras.callbacks.Callback):
    """Changes weights at random at an epoch's end, and counts."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.drawn = []

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count % 3 == 0:
            eager = float(tf.random.uniform(())) + float(tf.random.uniform((), seed=1))
            shared = float(TRACKED["generator"].uniform(())) + TRACKED["halves"].next()
            unseeded = np.random.default_rng().random()
            self.drawn.append(unseeded + random.random() + float(np.random.rand()) + eager + shared)
            self.model.beta *= 0.9
            kernel = self.model.layers[1].kernel
            change = 0.001 * self.model.beta * self.drawn[-1]
            kernel.assign_add(change * keras.ops.ones_like(kernel))


class Tells(keras.callbacks.Callback):
    """Holds what no checkpoint can, and tells and takes its count by methods of its own."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.calls = 0

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]

    def on_train_batch_end(self, batch, logs=None):
        with self.lock:
            self.calls += 1
        last = self.model.trainable_variables[-1]
        last.assign_add(1e-4 * self.calls * keras.ops.ones_like(last))


def watchful():
    return [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2, factor=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        Jitter(),
        Tells(),
    ]
