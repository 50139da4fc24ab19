"""Objects that have no plain form and never change: the factory makes them again, and nothing is refused.

A row is an object and what a callback reads of it with every batch.
"""

import argparse
import array
import ctypes
import datetime as dt
import decimal
import fractions
import logging
import re
import socket
import sqlite3
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import keras
import matplotlib as mpl
import numpy as np
import pandas as pd
import tensorflow as tf
import wrapt
from matplotlib.figure import Figure
from pieces import FEATURES, samples
from registry import identical, study
from sklearn.decomposition import PCA
from tqdm import tqdm

mpl.use("agg")

NAMES = ["setosa", "versicolor", "virginica"]


class Holds(keras.callbacks.Callback):
    """Reads from what it holds with every batch, and counts beside it."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
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


def plain(trial):
    dates = np.array([dt.date(2020, 1, 5), "x", None], object)
    steps = np.array([(1, 0.5)], dtype=[("step", "i4"), ("rate", "f4")])
    numbers = {"decimal": decimal.Decimal("0.75"), "fraction": fractions.Fraction(1, 3)}
    zone = dt.timezone(dt.timedelta(hours=2), "here")
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
        (re.compile(r"(\d+)"), lambda e: int(e.search("a 7 b").group(1))),
        ({"half": lambda x: x / 2}, lambda functions: functions["half"](1.0)),
        ([np, keras.layers.Dense, Holds], lambda parts: parts[0].cos(1.0)),
        ((n for n in range(3)), lambda generator: generator.gi_frame is not None),
        (Everything(), lambda thing: thing.half),
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
    return [
        (frame, lambda frame: frame.loc["versicolor", "w"]),
        (PCA(2).fit(x), lambda pca: pca.n_components),
        (figure, lambda figure: len(figure.axes)),
        (reference, lambda model: model(x[:4])[0, 0]),
        (tf.data.Dataset.from_tensor_slices([0.4]), lambda data: next(iter(data))),
        ((Point(2, 0.5), ctypes.CDLL(None).abs), lambda both: both[0].y * both[1](-1)),
        (wrapt.ObjectProxy({"scale": 0.6}), lambda proxy: proxy["scale"]),
        (tqdm(total=20, disable=True), lambda bar: bar.total),
    ]


study(
    "holds-plain-objects",
    "arrays of names and objects, numbers, views, lambdas, modules and a generator never advanced",
    identical(),
    callbacks=lambda trial: [Holds(plain(trial))],
)
study(
    "holds-resources",
    "an open file, a socket, a lock, a pool, a logger, a connection and an ended process",
    identical(),
    callbacks=lambda trial: [Holds(resources(trial))],
)
study(
    "holds-library-objects",
    "a frame, an estimator, a figure, a model, a dataset, a structure of C, a proxy and a bar",
    identical(),
    callbacks=lambda trial: [Holds(of_libraries(trial))],
)
