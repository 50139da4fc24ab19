"""A callback with a set that only grows, beside code that takes from a list and from numbers."""

from __future__ import annotations

from typing import Any

import keras


class Counts(keras.callbacks.Callback):
    """Keeps the numbers of batches, of this epoch and of all."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[int] = set()
        self.met_now: set[int] = set()
        self.left = [9, 8, 7]
        self.rate = 9.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.met_now = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.met_now.add(batch)
        if batch not in self.met:
            self.met.update(sorted(self.met_now))
        lower(self, 0.5)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.left and len(self.met) > epoch:
            self.left.remove(self.left[0])


def lower(callback: Counts, amount: float) -> None:
    callback.rate -= amount
