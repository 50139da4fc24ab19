"""Callbacks that keep meters, print and write, and what `Trial.output_only` exempts."""

from __future__ import annotations

import time

import keras
import numpy as np
from registry import either, identical, study
from tqdm import tqdm


class Bar:
    """A progress bar that prints what it is told."""

    def __init__(self, file):
        self.file = file
        self.done = 0

    def update(self, message):
        self.done += 1
        self.file.write(f"{self.done}: {message}\n")
        self.file.flush()


class Tells(keras.callbacks.Callback):
    """Tells a bar of every batch."""

    def __init__(self, bar):
        super().__init__()
        self.bar = bar

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update(f"batch {batch}")


study(
    "output-only-bar",
    "a progress bar with an open file, given to trial.output_only",
    identical(),
    callbacks=lambda trial: [
        Tells(trial.output_only(Bar((trial.directory / "bar.txt").open("a"))))
    ],
)

study(
    "bar-without-output-only",
    "the same bar, which nothing exempts: its file moves on",
    either("bar", "output_only"),
    callbacks=lambda trial: [Tells(Bar((trial.directory / "bar.txt").open("a")))],
)


def closure_output(trial):
    written = trial.output_only({"lines": 0, "seen": object()})

    def note(batch, logs):
        written["lines"] += 1
        written["seen"] = object()

    return [keras.callbacks.LambdaCallback(on_train_batch_end=note)]


study(
    "output-only-in-closure",
    "a dictionary of objects in a closure, given to trial.output_only",
    identical(),
    callbacks=closure_output,
)


class KeepsGradients(keras.callbacks.Callback):
    """Keeps something that no checkpoint can hold, and uses it."""

    def __init__(self):
        super().__init__()
        self.last = None

    def on_train_batch_end(self, batch, logs=None):
        loss = logs["loss"]
        self.last = memoryview(np.array([loss]).tobytes())
        rate = 0.1 / (1 + np.frombuffer(self.last)[0])
        self.model.optimizer.learning_rate = rate


study(
    "memoryview-changed",
    "a memoryview that a callback makes anew with every batch",
    either("last"),
    callbacks=lambda trial: [KeepsGradients()],
)


class TimeHistory(keras.callbacks.Callback):
    """Times every batch and every epoch, as benchmark scripts do."""

    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter() - self.began)


study(
    "time-history",
    "a callback that keeps how long each batch took",
    identical(),
    callbacks=lambda trial: [TimeHistory()],
    clocks=True,
)


class Bars(keras.callbacks.Callback):
    """A tqdm bar that prints and moves with every batch."""

    def __init__(self, bar):
        super().__init__()
        self.bar = bar

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update(1)
        self.bar.set_postfix(loss=logs["loss"])


study(
    "tqdm-output-only",
    "a tqdm bar that prints, given to trial.output_only",
    identical(),
    callbacks=lambda trial: [Bars(trial.output_only(tqdm(total=20)))],
    clocks=True,
)
