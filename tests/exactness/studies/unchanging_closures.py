"""Closures, model attributes and data functions over what has no plain form and never changes."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import operator
import threading

import keras
import numpy as np
import tensorflow as tf
from pieces import (
    CLASSES,
    FEATURES,
    compiled,
    crossentropy,
    layers_of,
    with_loss,
)
from registry import identical, study


def build_with_arguments(trial):
    given = argparse.Namespace(smoothing=0.1, names=np.array(["a", "b"]))

    def smoothed(y_true, y_pred):
        return crossentropy(y_true, y_pred) * (1 - given.smoothing) + 0.01 * len(given.names)

    return with_loss(smoothed)


study(
    "loss-over-namespace",
    "a loss over the script's arguments",
    identical(),
    model=build_with_arguments,
)

study(
    "loss-over-namespace-eager",
    "the same, eagerly",
    identical(),
    model=lambda trial: with_loss(build_with_arguments(trial).loss, run_eagerly=True),
)


def over_named_tuple(trial):
    Weights = collections.namedtuple("Weights", "first second")  # noqa: PYI024 - as people write
    weights = Weights(0.7, Weights(0.1, None))
    return with_loss(lambda y, p: crossentropy(y, p) * weights.first + weights.second.first)


study(
    "loss-over-local-named-tuple",
    "a named tuple whose class is local to the factory",
    identical(),
    model=over_named_tuple,
)


def over_lock(trial):
    lock = threading.RLock()

    def guarded(y_true, y_pred):
        with lock:
            return crossentropy(y_true, y_pred)

    return with_loss(guarded, run_eagerly=True)


study("loss-over-lock", "a loss that takes a lock, eagerly", identical(), model=over_lock)


def over_teacher(trial):
    teacher = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, "softmax")])

    class Distilled(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential(layers_of())

        def call(self, x, training=False):
            return self.inner(x, training=training) * 0.9 + 0.1 * teacher(x)

    return compiled(Distilled())


study(
    "call-over-fixed-teacher",
    "a teacher in the closure of a model's call, which is never trained",
    identical(),
    model=over_teacher,
)


class Kind(enum.Flag):
    """Options as a flag."""

    PLAIN = enum.auto()
    SCALED = enum.auto()


def over_flag(trial):
    kind = Kind.PLAIN | Kind.SCALED
    table = {Kind.PLAIN: 1.0, Kind.SCALED: 0.5}
    return with_loss(lambda y, p: crossentropy(y, p) * sum(table[k] for k in kind))


study("loss-over-flag", "an enumeration's flags and a table by them", identical(), model=over_flag)


def over_partial(trial):
    scale = functools.partial(operator.mul, 0.5)
    pick = operator.itemgetter("w")
    return with_loss(lambda y, p: scale(crossentropy(y, p)) * pick({"w": 1.5}), run_eagerly=True)


study(
    "loss-over-partial-and-itemgetter",
    "functools.partial and operator.itemgetter in a closure, eagerly",
    identical(),
    model=over_partial,
)


def over_static_table(trial):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1, 2], [1.0, 0.5, 0.8]), 1.0
    )

    def weighted(y_true, y_pred):
        keys = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        return crossentropy(y_true, y_pred) * table.lookup(keys)

    return with_loss(weighted)


study(
    "loss-over-static-table",
    "a StaticHashTable in the closure of a traced loss",
    identical(),
    model=over_static_table,
)
