"""A callback whose set another function takes members from."""

from __future__ import annotations

from typing import Any

import keras


class Lends(keras.callbacks.Callback):
    """Keeps the numbers of batches, and passes them on."""

    def __init__(self) -> None:
        super().__init__()
        self.met_here: set[int] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.met_here.add(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        forget(self.met_here, epoch)


def forget(members: set[int], epoch: int) -> None:
    members.discard(epoch)
