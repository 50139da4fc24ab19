"""Attributes of callbacks that have no plain form and never change: the factory makes them again."""

from __future__ import annotations

import argparse
import datetime as dt
import logging
import re
import socket
import subprocess
import sys
import threading
import weakref

import keras
import matplotlib as mpl
import numpy as np
import tensorflow as tf
from holding import Holds
from registry import identical, study
from tqdm import tqdm

mpl.use("agg")


NAMES = ["setosa", "versicolor", "virginica"]

study(
    "holds-array-of-strings",
    "an array of class names",
    identical(),
    callbacks=lambda trial: [Holds(np.array(NAMES), lambda names: len(names[1]) / 10)],
)

study(
    "holds-array-of-objects",
    "an array of objects, dates among them",
    identical(),
    callbacks=lambda trial: [
        Holds(np.array([dt.date(2020, 1, 5), "x", None], object), lambda a: a[0].day / 5)
    ],
)

study(
    "holds-structured-array",
    "a structured array that is only read",
    identical(),
    callbacks=lambda trial: [
        Holds(np.array([(1, 0.5)], dtype=[("step", "i4"), ("rate", "f4")]), lambda a: a["rate"][0])
    ],
)

study(
    "holds-argparse-namespace",
    "the parsed arguments of a script",
    identical(),
    callbacks=lambda trial: [Holds(argparse.Namespace(scale=0.8), lambda given: given.scale)],
)


class AttrDict(dict):
    """A dictionary whose keys are attributes, as every second repository has it."""

    __getattr__ = dict.__getitem__


study(
    "holds-dictionary-subclass",
    "a dictionary subclass with attribute access",
    identical(),
    callbacks=lambda trial: [Holds(AttrDict(scale=0.7, deep=AttrDict(a=1)), lambda d: d.scale)],
)


def of_dataset(dataset):
    return float(next(iter(dataset))[0])


study(
    "holds-dataset",
    "a tf.data.Dataset that is read anew with every batch",
    identical(),
    callbacks=lambda trial: [
        Holds(tf.data.Dataset.from_tensor_slices([0.4, 0.6]).batch(2), of_dataset)
    ],
)


class Kept:
    """What a weak reference leads to."""

    scale = 0.9


def weakly(trial):
    kept = Kept()
    callback = Holds(weakref.ref(kept), lambda reference: reference().scale)
    callback.keeps_alive = kept
    return [callback]


study("holds-weak-reference", "a weak reference to an object", identical(), callbacks=weakly)


class Prints(keras.callbacks.Callback):
    """A tqdm bar, made once, that is closed and never moved."""

    def __init__(self):
        super().__init__()
        self.bar = tqdm(total=20, disable=True)

    def on_epoch_end(self, epoch, logs=None):
        self.bar.update(5)


study(
    "holds-tqdm-disabled",
    "a tqdm bar that is disabled, and updated with every epoch",
    identical(),
    callbacks=lambda trial: [Prints()],
)

study(
    "holds-lock",
    "a lock that is taken and given back",
    identical(),
    callbacks=lambda trial: [Holds(threading.Lock(), lambda lock: 0.5 if _taken(lock) else 1)],
)


def _taken(lock):
    with lock:
        return True


study(
    "holds-open-file",
    "a file open for reading that is never read",
    identical(),
    callbacks=lambda trial: [
        Holds(open(__file__), lambda file: len(file.mode))  # noqa: PTH123, SIM115 - as people do
    ],
)

study(
    "holds-logger",
    "a logger",
    identical(),
    callbacks=lambda trial: [
        Holds(logging.getLogger("training"), lambda log: 0.5 if log.name else 1)
    ],
)

study(
    "holds-socket",
    "a socket that is connected to nothing",
    identical(),
    callbacks=lambda trial: [Holds(socket.socket(), lambda s: 1 / max(1, s.type))],
)


def ended(trial):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return [Holds(process, lambda p: 1 / (1 + p.returncode))]


study("holds-subprocess", "the handle of a process that has ended", identical(), callbacks=ended)

study(
    "holds-regular-expression",
    "a compiled regular expression",
    identical(),
    callbacks=lambda trial: [
        Holds(re.compile(r"(\d+)"), lambda e: int(e.search("a 7 b").group(1)) / 10)
    ],
)

study(
    "holds-dictionary-of-lambdas",
    "lambdas in a dictionary",
    identical(),
    callbacks=lambda trial: [
        Holds({"half": lambda x: x / 2, "same": lambda x: x}, lambda fs: fs["half"](1.0))
    ],
)

study(
    "holds-module-and-types",
    "modules and classes",
    identical(),
    callbacks=lambda trial: [
        Holds([np, keras.layers.Dense, Holds], lambda parts: float(parts[0].cos(1.0)))
    ],
)

study(
    "holds-generator-not-advanced",
    "a generator that is never advanced",
    identical(),
    callbacks=lambda trial: [
        Holds((n for n in range(3)), lambda g: 0.5 if g.gi_frame is not None else 1)
    ],
)
