"""Objects that have no plain form and never change: the factory makes them again, and nothing is refused."""

import argparse
import array
import collections
import contextlib
import ctypes
import datetime as dt
import decimal
import enum
import fractions
import functools
import itertools
import logging
import operator
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import keras
import matplotlib as mpl
import numpy as np
import pandas as pd
import tensorflow as tf
import wrapt
from matplotlib.figure import Figure
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, Wrapping, compiled, crossentropy, samples
from registry import identical, refused, study, study_data, study_model
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from tqdm import tqdm

from sweeper import Data

mpl.use("agg")

NAMES = ["setosa", "versicolor", "virginica"]


class Reads(keras.callbacks.Callback):
    """Reads from what it holds with every batch, and counts beside it."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        self.emptied = set()
        read = sum(float(read(thing)) for thing, read in self.rows)
        self.model.optimizer.learning_rate = 0.1 * np.tanh(read) / (1 + 0.05 * self.steps)


class AttrDict(dict):
    """A dictionary whose keys are attributes, as every second repository has it."""

    __getattr__ = dict.__getitem__


class Everything:
    """Answers to every name, as mock objects and remote proxies do."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return len(name)


class Point(ctypes.Structure):
    """A structure of C."""

    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_double))


class Kept:
    """What a weak dictionary leads to."""

    scale = 0.5


def plain(trial):
    dates = np.array([dt.date(2020, 1, 5), "x", None], object)
    steps = np.array([(1, 0.5)], dtype=[("step", "i4"), ("rate", "f4")])
    numbers = {"decimal": decimal.Decimal("0.75"), "fraction": fractions.Fraction(1, 3)}
    zone = dt.timezone(dt.timedelta(hours=2), "here")
    kept = Kept()
    by_kept = weakref.WeakValueDictionary(kept=kept)
    return [
        (np.array(NAMES), lambda names: len(names[1])),
        (dates, lambda a: a[0].day),
        (steps, lambda a: a["rate"][0]),
        (argparse.Namespace(scale=0.8), lambda given: given.scale),
        (AttrDict(scale=0.7, deep=AttrDict(a=1)), lambda d: d.scale),
        (numbers, lambda many: float(many["decimal"]) * float(many["fraction"])),
        (zone, lambda zone: zone.utcoffset(None).seconds),
        (types.MappingProxyType({"a": 0.5}), lambda view: view["a"]),
        (memoryview(b"\x05\x06"), lambda view: view[0]),
        (array.array("d", [0.5]), lambda numbers: numbers[0]),
        ({1, 3, "x", "y"}, lambda chosen: 3 in chosen),
        (re.compile(r"(\d+)"), lambda e: int(e.search("a 7 b").group(1))),
        ({"half": lambda x: x / 2}, lambda functions: functions["half"](1.0)),
        ([np, keras.layers.Dense, Reads], lambda parts: parts[0].cos(1.0)),
        ((n for n in range(3)), lambda generator: generator.gi_frame is not None),
        (Everything(), lambda thing: thing.half),
        (by_kept, lambda weak, keep=kept: weak["kept"].scale),
    ]


def resources(trial):
    connection = sqlite3.connect(trial.directory / "facts.db")
    connection.execute("CREATE TABLE IF NOT EXISTS facts (rate REAL)")
    connection.execute("INSERT INTO facts VALUES (0.5)")
    connection.commit()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return [
        (connection, lambda c: c.execute("SELECT min(rate) FROM facts").fetchone()[0]),
        (ended, lambda process: process.returncode),
        (threading.Lock(), lambda lock: lock.acquire() and lock.release() is None),
        (open(__file__), lambda file: len(file.mode)),  # noqa: PTH123 - as people do
        (logging.getLogger("training"), lambda log: len(log.name)),
        (socket.socket(), lambda s: s.type),
        (ThreadPoolExecutor(1), lambda pool: pool._max_workers),
    ]


def of_libraries(trial):
    x, _ = samples()
    figure = Figure()
    figure.subplots().plot([0, 1])
    frame = pd.DataFrame({"name": NAMES, "w": [0.2, 0.5, 0.9]}).set_index("name")
    reference = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3, "softmax")])
    reference.compile("adam", "mse")
    return [
        (frame, lambda frame: frame.loc["versicolor", "w"]),
        (PCA(2).fit(x), lambda pca: pca.n_components),
        (figure, lambda figure: len(figure.axes)),
        (reference, lambda model: model.predict(x[:4], verbose=0)[0, 0]),
        (tf.data.Dataset.from_tensor_slices([0.4]), lambda data: next(iter(data))),
        ((Point(2, 0.5), ctypes.CDLL(None).abs), lambda both: both[0].y * both[1](-1)),
        (wrapt.ObjectProxy({"scale": 0.6}), lambda proxy: proxy["scale"]),
        (tqdm(total=20, disable=True), lambda bar: bar.total),
    ]


study(
    "reads-unchanging-objects",
    "a callback that reads plain objects, resources and those of libraries, and counts",
    identical(),
    callbacks=lambda trial: [Reads([*plain(trial), *resources(trial), *of_libraries(trial)])],
)


class Kind(enum.Flag):
    """Options as a flag."""

    PLAIN = enum.auto()
    SCALED = enum.auto()


@study_model(
    "model-over-unchanging-objects",
    "a traced model, whose call, step and loss use a teacher, tables, partials, locks and plain values",
    identical(),
)
def over_unchanging(trial):
    teacher = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, "softmax")])
    given = argparse.Namespace(smoothing=0.1, names=np.array(["a", "b"]))
    Weights = collections.namedtuple("Weights", "first second")  # noqa: PYI024 - as people write
    weights = Weights(0.7, Weights(0.1, None))
    table = {Kind.PLAIN: 1.0, Kind.SCALED: 0.5}
    scale = functools.partial(operator.mul, 0.5)
    pick = operator.itemgetter("w")
    lock = threading.RLock()
    counting = itertools.count()
    waiting = (n for n in [0.5])
    of_classes = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1, 2], [1.0, 0.5, 0.8]), 1.0
    )

    class Configured(Wrapping):
        def __init__(self):
            super().__init__()
            self.log = logging.getLogger("model")
            self.pattern = re.compile("kernel")
            self.config = types.SimpleNamespace(names=np.array(["a", "b"]), scale=0.5)
            self.opened = contextlib.nullcontext()

        def call(self, x, training=False):
            with self.opened:
                return self.inner(x, training=training) * 0.9 + 0.1 * teacher(x)

        def train_step(self, data):
            self.log.debug("%s", len(self.config.names))
            assert self.pattern.search(self.trainable_variables[0].path)
            x, y = data
            return {"loss": self.step(x * self.config.scale, y)}

    def loss(y_true, y_pred):
        of_class = of_classes.lookup(tf.cast(tf.reshape(y_true, [-1]), tf.int32))
        with lock:
            weighted = scale(crossentropy(y_true, y_pred)) * pick({"w": 1.5}) * weights.first
        assert counting is not None
        assert not waiting.gi_running
        factor = sum(table[k] for k in Kind) * (1 - given.smoothing) + len(given.names)
        return weighted * of_class * factor

    return compiled(Configured(), loss=loss)


class Lazy(keras.utils.PyDataset):
    """Reads its samples from a memory-mapped file, by a table of names, through a fitted pipeline."""

    def __init__(self, path):
        super().__init__()
        x, y = samples()
        np.save(path, x)
        self.x = np.load(path, mmap_mode="r")
        self.labels = np.array([f"class-{v}" for v in y])
        self.lock = threading.Lock()
        self.parse = re.compile(r"\d+")
        self.pipeline = make_pipeline(StandardScaler(), MinMaxScaler()).fit(x)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        part = slice(index * BATCH, (index + 1) * BATCH)
        with self.lock:
            y = [int(self.parse.search(name).group()) for name in self.labels[part]]
        return self.pipeline.transform(self.x[part]).astype("float32"), np.array(y)


study(
    "data-over-unchanging-objects",
    "a PyDataset over a memory-mapped file, a lock, a pattern, an array of names and a pipeline",
    identical(),
    data=lambda trial: Data(train=Lazy(trial.directory / "x.npy")),
)


@study_data(
    "data-over-open-file-by-position",
    "a function of the epoch that seeks in an open file before it reads",
    refused("handle", "an open file", "in the function that reads", by=2),
)
def by_handles(trial):
    x, y = samples()
    path = trial.directory / "x.bin"
    path.write_bytes(x.tobytes())
    handle = path.open("rb")

    def epoch_of(epoch):
        for start in range(0, len(x), BATCH):
            handle.seek(start * FEATURES * 4)
            part = np.frombuffer(handle.read(BATCH * FEATURES * 4), "float32")
            yield part.reshape(BATCH, FEATURES), y[start : start + BATCH]
        handle.seek(0)

    return Data(train=epoch_of)
