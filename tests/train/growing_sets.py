"""A callback with a set."""

from __future__ import annotations

from typing import Any

import keras


class Sees(keras.callbacks.Callback):
    """Keeps the numbers of batches in a set, which only grows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.add(batch)
