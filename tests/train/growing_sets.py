"""Callbacks with sets; no function at the top of this file takes members from one."""

from __future__ import annotations

from typing import Any

import keras


class Sees(keras.callbacks.Callback):
    """Keeps the numbers of batches in a set, which only grows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.wait = 9

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.add(batch)
        self.wait -= 1


class Works(Sees):
    """Takes members from it as well."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.discard(epoch)
