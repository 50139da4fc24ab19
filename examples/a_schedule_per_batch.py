"""Lesson 3: a callback with a counter, in one training that is interrupted and goes on.

    python examples/a_schedule_per_batch.py

A learning rate that changes with every batch is kept by a callback that counts batches. Resumed in
the usual ways, the counter starts again at zero, and with it the schedule. Here it goes on at the
exact batch: the counter is a plain attribute, so it is in the checkpoint, with no code for it.
"""

from __future__ import annotations

from pathlib import Path
import tempfile
from typing import Any

import sweeper
import keras
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale


class RatePerBatch(keras.callbacks.Callback):
    """Halves the learning rate every 50 batches."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.first = first
        self.counter = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        del batch, logs
        self.model.optimizer.learning_rate = self.first * 0.5 ** (self.counter // 50)
        self.counter += 1


class StopAfter(keras.callbacks.Callback):
    """Stands for the power cut: raises in the middle of an epoch.

    Its counter must *not* be in the checkpoint, or the next process would stop there too; the two
    methods at its end say so.
    """

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        del batch, logs
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("the power is gone")

    def get_state(self) -> None:
        """Keep nothing."""

    def set_state(self, state: None) -> None:
        """Take nothing back."""


def training(directory: Path, *, stop_after: int) -> tuple[float, int]:
    """Train from wherever ``directory`` has got to; return the last loss and the batches counted."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    x, y = load_breast_cancer(return_X_y=True)
    schedule = RatePerBatch(0.01)
    history = sweeper.fit(
        model,
        scale(x),
        y,
        epochs=8,
        verbose=0,
        checkpoints=directory,
        callbacks=[schedule, StopAfter(stop_after)],
        checkpoint_every=sweeper.Every(steps=5),
    )
    return history.history["loss"][-1], schedule.counter


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        whole = training(Path(temporary) / "whole", stop_after=10_000)
        directory = Path(temporary) / "interrupted"
        try:
            training(directory, stop_after=77)
        except RuntimeError as error:
            print(f"interrupted: {error}")
        resumed = training(directory, stop_after=10_000)
        print(f"undisturbed: loss {whole[0]!r}, {whole[1]} batches")
        print(f"resumed:     loss {resumed[0]!r}, {resumed[1]} batches")
        if resumed != whole:
            raise SystemExit("they differ")


if __name__ == "__main__":
    main()
