"""Callbacks that keep meters, print and write, and what `Trial.output_only` exempts."""

import time

import keras
from registry import either, identical, study, study_callback


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


@study_callback(
    "output-only-in-closure",
    "a dictionary of objects in a closure, given to trial.output_only",
    identical(),
)
def closure_output(trial):
    written = trial.output_only({"lines": 0, "seen": object()})

    def note(batch, logs):
        written["lines"] += 1
        written["seen"] = object()

    return [keras.callbacks.LambdaCallback(on_train_batch_end=note)]


@study_callback(
    "time-history", "a callback that keeps how long each batch took", identical(), clocks=True
)
class TimeHistory(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter() - self.began)
