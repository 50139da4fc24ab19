"""Closures, model attributes and data functions over what has no plain form and never changes."""

import argparse
import collections
import enum
import functools
import itertools
import operator
import threading

import keras
import numpy as np
import tensorflow as tf
from pieces import CLASSES, FEATURES, Wrapping, compiled, crossentropy, stacked
from registry import identical, study_model


@study_model(
    "call-over-fixed-teacher",
    "a teacher in the closure of a model's call, which is never trained",
    identical(),
)
def over_teacher(trial):
    teacher = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES, "softmax")])

    class Distilled(Wrapping):
        def call(self, x, training=False):
            return self.inner(x, training=training) * 0.9 + 0.1 * teacher(x)

    return compiled(Distilled())


class Kind(enum.Flag):
    """Options as a flag."""

    PLAIN = enum.auto()
    SCALED = enum.auto()


@study_model(
    "loss-over-static-table", "a StaticHashTable in the closure of a traced loss", identical()
)
def over_static_table(trial):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1, 2], [1.0, 0.5, 0.8]), 1.0
    )

    def weighted(y_true, y_pred):
        keys = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        return crossentropy(y_true, y_pred) * table.lookup(keys)

    return stacked(loss=weighted)


@study_model(
    "loss-over-plain-values",
    "a loss over arguments, a local named tuple, flags, partials, a lock and iterators never advanced",
    identical(),
)
def over_plain_values(trial, **options):
    given = argparse.Namespace(smoothing=0.1, names=np.array(["a", "b"]))
    Weights = collections.namedtuple("Weights", "first second")  # noqa: PYI024 - as people write
    weights = Weights(0.7, Weights(0.1, None))
    table = {Kind.PLAIN: 1.0, Kind.SCALED: 0.5}
    scale, pick = functools.partial(operator.mul, 0.5), operator.itemgetter("w")
    lock, counting, waiting = threading.RLock(), itertools.count(), (n for n in [0.5])

    def loss(y_true, y_pred):
        with lock:
            found = scale(crossentropy(y_true, y_pred)) * pick({"w": 1.5}) * weights.first
        assert counting is not None
        assert not waiting.gi_running
        return found * sum(table[k] for k in Kind) * (1 - given.smoothing) + len(given.names)

    return stacked(loss=loss, **options)
