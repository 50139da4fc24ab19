"""What a checkpoint costs for the walk over the user's objects: has any of them changed?

Each model is trained by the loop itself, with callbacks that keep state of every usual kind, and a
checkpoint is taken at the end of each epoch. Timed are the capture of the component ``user_state``
and the epoch before it, the first in processor seconds of the thread that trains, so that the
machine's neighbours hardly count. The bounds are 1 % of the epoch, and 5 ms for 200 layers::

    python benchmarks/walk_cost.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from digits import network
from guard_cost import deep
from sklearn.datasets import load_digits

from sweeper.support.tensorflow_start import configure_tensorflow
from sweeper.train.data import Data
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Observer, TrainingPlan
from sweeper.train.state.state import Position
from sweeper.train.userstate import UserState

SHARE = 0.01
MOST_MS = 5.0


class Keeps(keras.callbacks.Callback):
    """Keeps what callbacks keep: counts, lists, dictionaries, arrays, generators."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.best: dict[str, float] = {}
        self.noise = np.random.default_rng(3)
        self.average = np.zeros(1000)
        self.seen: dict[str, None] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        loss = (logs or {})["loss"]
        self.losses.append(loss)
        self.best["loss"] = min(loss, self.best.get("loss", loss))
        self.average += self.noise.random(1000)
        self.seen[f"epoch {epoch}"] = None


class Watches(Observer):
    """Takes a snapshot after each epoch, and keeps none."""

    def __init__(self) -> None:
        super().__init__("auto")
        self.seconds: list[float] = []

    def steps_done(self, position: Position) -> None: ...

    def epoch_ended(self, _record: Any, _step: int, seconds: float) -> None:
        self.seconds.append(seconds)

    def steps_until_due(self, _position: Position) -> int:
        return 1 << 30

    def is_due(self, position: Position) -> bool:
        return position.step_in_epoch == 0

    def keep(self, snapshot: Any) -> None: ...

    def stop_requested(self) -> bool:
        return False


def measure(model: keras.Model, data: Data, epochs: int) -> tuple[list[float], list[float]]:
    """Seconds of each epoch, and of the walk at the checkpoint after it; the first are left out."""
    took: list[float] = []
    original = UserState.capture

    def timed(self: UserState, tensors: Any) -> Any:
        began = time.thread_time()
        captured = original(self, tensors)
        took.append(time.thread_time() - began)
        return captured

    watches = Watches()
    callbacks = [
        Keeps(),
        keras.callbacks.EarlyStopping("loss", patience=99),
        keras.callbacks.ReduceLROnPlateau("loss", patience=99),
    ]
    plan = TrainingPlan(model, data, callbacks, epochs, ("loss",), np.random.SeedSequence(1))
    UserState.capture = timed  # type: ignore[method-assign]
    try:
        TrainingLoop(plan, watches).run()
    finally:
        UserState.capture = original  # type: ignore[method-assign]
    return watches.seconds[1:], took[-(epochs - 1) :]


def main() -> None:
    configure_tensorflow(threads=1, deterministic=True)
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    digits = Data(train=(x, y.astype("int32")), batch_size=32)
    chain = Data(train=(x[:, :32], x[:, 32:]), batch_size=32)
    print(f"{'model':<16}{'epoch':>12}{'walk':>12}{'share':>9}{'wanted':>20}")
    cases: list[tuple[str, Callable[[], keras.Model], Data, int]] = [
        ("digits MLP", lambda: network(0.001), digits, 30),
        ("20 layers", lambda: deep(20), chain, 15),
        ("200 layers", lambda: deep(200), chain, 8),
    ]
    for what, factory, data, epochs in cases:
        epoch, walk = map(statistics.median, measure(factory(), data, epochs))
        holds = walk <= SHARE * epoch and walk * 1e3 < MOST_MS
        print(
            f"{what:<16}{epoch * 1e3:>9,.0f} ms{walk * 1e3:>9,.2f} ms{walk / epoch:>8.2%}"
            f"{'<= 1 %, < 5 ms':>16}{'yes' if holds else 'NO':>4}"
        )


if __name__ == "__main__":
    main()
