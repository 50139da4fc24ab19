"""Order and identity: sets, weak references, and streams in memory."""

import io
import weakref

import keras
import numpy as np
from pieces import build_eager
from registry import either, identical, refused, study, study_callback


def rate(callback, value):
    callback.model.optimizer.learning_rate = 0.1 / (1 + float(value))


@study_callback(
    "set-of-ints-order",
    "a set whose order of iteration comes from what was added and removed before",
    refused("FirstOfSet.open", "is a set", "dict.fromkeys"),
)
class FirstOfSet(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.open = set()

    def on_train_batch_begin(self, batch, logs=None):
        # Members that were removed leave holes, so the order is not that of a fresh set.
        for number in range(0, 400, 8):
            self.open.add(number + 3 * batch)
        for number in list(self.open)[::3]:
            self.open.discard(number)
        rate(self, next(iter(self.open)) / 100)


@study_callback(
    "set-that-grows",
    "a set of whole numbers that only grows",
    refused("SeenInEpoch.seen", "is a set", "dict.fromkeys"),
)
class SeenInEpoch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def on_train_batch_end(self, batch, logs=None):
        self.seen.add(batch)
        rate(self, len(self.seen))


class LooksUp(keras.callbacks.Callback):
    """Looks batches up in a set that nothing changes, and begins an empty one with each."""

    def __init__(self, chosen):
        super().__init__()
        self.chosen = chosen
        self.rest = set()

    def on_train_batch_end(self, batch, logs=None):
        self.rest = set()
        rate(self, 1 if batch in self.chosen else 2)


study(
    "set-looked-up",
    "a set of numbers and words that nothing changes, and an empty one that is made with each batch",
    identical(),
    callbacks=lambda trial: [LooksUp({1, 3, "x", "y"})],
)


class Node:
    """Is a key."""


@study_callback(
    "weak-key-dictionary",
    "a WeakKeyDictionary that grows and shrinks with a list of objects",
    refused("by_node", "weak references", "use a dict"),
)
class Weakly(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.alive = []
        self.by_node = weakref.WeakKeyDictionary()

    def on_train_batch_end(self, batch, logs=None):
        node = Node()
        self.alive.append(node)
        self.by_node[node] = logs["loss"]
        del self.alive[:-4]
        rate(self, sum(self.by_node.values()))


@study_callback(
    "stream-in-memory",
    "a StringIO that a callback writes to",
    refused("WritesText.text", "a stream in memory", "in a list"),
)
class WritesText(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.text = io.StringIO()

    def on_train_batch_end(self, batch, logs=None):
        self.text.write(f"{batch} ")
        rate(self, len(self.text.getvalue()))


@study_callback(
    "structured-and-string-arrays",
    "a structured array and an array of strings that a callback writes into",
    either("rows"),
    model=build_eager,
)
class Structured(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rows = np.zeros(6, dtype=[("step", "i4"), ("loss", "f4")])
        self.names = np.array(["none"] * 6, dtype="U12")
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        at = self.step % 6
        self.rows[at] = (self.step, logs["loss"])
        self.names[at] = f"batch {batch}"
        self.step += 1
        rate(self, self.rows["loss"].sum() + sum(len(n) for n in self.names) / 100)
