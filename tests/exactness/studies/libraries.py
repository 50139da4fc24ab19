"""State inside objects of libraries: frames, buffers, and generators that wait."""

import random

import keras
import pandas as pd
from registry import refused, study_callback


class Lowers(keras.callbacks.Callback):
    """Lowers the learning rate by what it has kept of the steps; a subclass keeps it."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1.0 + self.keep(float(logs["loss"])))


@study_callback(
    "series-that-grows",
    "a series of pandas that a callback appends to in place",
    refused("SeriesGrows.seen", "a frame or series of pandas", "in a list"),
)
class SeriesGrows(Lowers):
    def __init__(self):
        super().__init__()
        self.seen = pd.Series([], dtype=float)

    def keep(self, loss):
        self.seen[len(self.seen)] = loss
        return float(self.seen.mean())


@study_callback(
    "bytearray-counts",
    "a bytearray of counts that a callback writes into",
    refused("ByteCounter.counts", "a buffer of bytes", "keep a NumPy array"),
)
class ByteCounter(Lowers):
    def __init__(self):
        super().__init__()
        self.counts = bytearray(8)

    def keep(self, loss):
        at = int(loss * 10) % 8
        self.counts[at] = (self.counts[at] + 1) % 256
        return float(max(self.counts))


@study_callback(
    "generator-in-a-loop",
    "a generator that comes back to one line each time, with its iterator on its stack",
    refused("generator"),
)
class TellsApart(Lowers):
    def __init__(self):
        super().__init__()
        self.cycle = self.rates()
        next(self.cycle)

    @staticmethod
    def rates():
        yield from [random.Random(k).random() for k in range(40)]

    def keep(self, loss):
        return next(self.cycle)
