"""Objects that a callback holds and changes: captured, or refused by what they are.

A row is an object and what a callback does with it and with the loss of each batch.
"""

import io
import random
import weakref

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from pieces import build_eager, lowering
from registry import identical, refused, study, study_callback


def added(seen, loss):
    seen.add(loss)
    return len(seen)


study(
    "set-that-grows",
    "a set, whose order of iteration would come from what was removed before",
    refused("Lowers.thing", "is a set", "dict.fromkeys"),
    callbacks=lowering(set, added),
)


def appended(series, loss):
    series[len(series)] = loss
    return series.mean()


study(
    "series-that-grows",
    "a series of pandas that is appended to in place",
    refused("Lowers.thing", "a frame or series of pandas", "in a list"),
    callbacks=lowering(lambda: pd.Series([], dtype=float), appended),
)


def counted(counts, loss):
    slot = int(loss * 10) % 8
    counts[slot] = (counts[slot] + 1) % 256
    return max(counts)


study(
    "bytearray-counts",
    "a bytearray of counts",
    refused("Lowers.thing", "a buffer of bytes", "keep a NumPy array"),
    callbacks=lowering(lambda: bytearray(8), counted),
)


def rates():
    yield from [random.Random(k).random() for k in range(40)]


study(
    "generator-in-a-loop",
    "a generator that comes back to one line each time, with its iterator on its stack",
    refused("generator"),
    callbacks=lowering(rates, lambda drawn, loss: next(drawn)),
)


async def rates_later():
    for rate in rates():
        yield rate


def drawn_later(generator, loss):
    try:
        generator.asend(None).send(None)
    except StopIteration as drawn:
        return drawn.value


study(
    "async-generator",
    "an asynchronous generator, whose frame has another name",
    refused("generator"),
    callbacks=lowering(rates_later, drawn_later),
)


class Node:
    """Is a key."""


class Alive:
    """Losses of the last four nodes, by nodes that nothing else keeps alive."""

    def __init__(self):
        self.alive = []
        self.by_node = weakref.WeakKeyDictionary()

    def add(self, loss):
        self.alive.append(Node())
        self.by_node[self.alive[-1]] = loss
        del self.alive[:-4]
        return sum(self.by_node.values())


study(
    "weak-key-dictionary",
    "a WeakKeyDictionary that grows and shrinks with a list of objects",
    refused("by_node", "weak references", "use a dict"),
    callbacks=lowering(Alive, Alive.add),
)
study(
    "stream-in-memory",
    "a StringIO that is written to",
    refused("Lowers.thing", "a stream in memory", "in a list"),
    callbacks=lowering(io.StringIO, lambda text, loss: text.write(str(loss)) + text.tell()),
)


def looked_up(table, loss):
    key = tf.constant(["batches"])
    table.insert(key, table.lookup(key) + 1.0)
    return table.lookup(key)[0]


study(
    "mutable-hash-table",
    "a MutableHashTable of TensorFlow's that is written into",
    refused("Lowers.thing", "a mutable lookup table", "tf.Variable"),
    callbacks=lowering(
        lambda: tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0), looked_up
    ),
)


def queued(queue, loss):
    old = queue.dequeue() if int(queue.size()) == 4 else 0.0
    queue.enqueue(tf.constant(loss, tf.float32))
    return old


study(
    "tensorflow-queue",
    "a tf.queue.FIFOQueue that is filled and emptied",
    refused("Lowers.thing", "collections.deque"),
    callbacks=lowering(lambda: tf.queue.FIFOQueue(4, [tf.float32]), queued),
)


@study_callback(
    "structured-and-string-arrays",
    "a structured array and an array of strings that a callback writes into",
    identical(),
    model=build_eager,
)
class Structured(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows = np.zeros(6, dtype=[("step", "i4"), ("loss", "f4")])
        self.names = np.array(["none"] * 6, dtype="U12")
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        slot = self.step % 6
        self.rows[slot] = (self.step, logs["loss"])
        self.names[slot] = f"batch {batch}"
        self.step += 1
        words = sum(len(name) for name in self.names)
        self.model.optimizer.learning_rate = 0.1 / (1 + self.rows["loss"].sum() + words / 100)
