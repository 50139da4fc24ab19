"""Our training loop against ``model.fit``: steps a second, with and without a per-batch callback.

Prints JSON for ``main_job.py``, which runs it in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import keras
from digits import BATCH, network, x, y
from ratios import Ratio, alternate

from sweeper import Data
from sweeper.support.tensorflow_start import configure_tensorflow
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Observer, TrainingPlan
from sweeper.train.randomness.seeds import TrialSeeds

EPOCHS = 20
STEPS = EPOCHS * -(-len(x) // BATCH)

Callbacks = Callable[[], list[keras.callbacks.Callback]]


class Silent(Observer):
    """An observer that keeps nothing and never stops the training."""

    def __init__(self):
        super().__init__("auto")

    def steps_done(self, position): ...
    def keep(self, snapshot): ...
    def steps_until_due(self, _position):
        return 1 << 30

    def is_due(self, _position):
        return False

    def stop_requested(self):
        return False


class PerBatch(keras.callbacks.Callback):
    """Listens to every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, _batch, _logs=None, **_more):
        self.seen += 1


def ours(callbacks: Callbacks) -> float:
    order = TrialSeeds(0, 0).sequence("order")
    data = Data(train=(x, y), batch_size=BATCH)
    loop = TrainingLoop(
        TrainingPlan(network(0.001), data, callbacks(), EPOCHS, (), order), Silent()
    )
    started = time.perf_counter()
    loop.run()
    return STEPS / (time.perf_counter() - started)


def fit(callbacks: Callbacks) -> float:
    model = network(0.001)
    model.fit(x[:64], y[:64], batch_size=BATCH, epochs=1, verbose=0)
    started = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks())
    return STEPS / (time.perf_counter() - started)


def main() -> None:
    rounds = int(sys.argv[1])
    configure_tensorflow(threads=1, deterministic=True)
    keras.utils.set_random_seed(0)
    ratios = []
    for what, callbacks, bound in (
        ("2a. our loop against model.fit, no callback listens to batches", list, 3.0),
        ("2b. our loop against model.fit, with a per-batch callback", lambda: [PerBatch()], 1.5),
    ):
        mine, theirs = alternate(lambda c=callbacks: ours(c), lambda c=callbacks: fit(c), rounds)
        ratios.append(Ratio(what, mine, theirs, "steps/s", bound, at_most=False))
    print(json.dumps([asdict(ratio) for ratio in ratios]))


main()
