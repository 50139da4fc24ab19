"""A `TrainingStep` with all defaults against the same model's compiled ``train_step``, in our loop.

Both train the digits' multilayer perceptron for the same epochs, in turn, so that a busy machine
slows both. The bound is 0.95 of the compiled step's steps a second::

    python benchmarks/step_speed.py [ROUNDS]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import keras
from digits import BATCH, network, x, y
from ratios import Ratio, alternate

from sweeper import Data, EverySteps, TrainingStep
from sweeper.support.tensorflow_start import configure_tensorflow
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Observer, TrainingPlan
from sweeper.train.randomness.seeds import TrialSeeds

EPOCHS = 60
STEPS = EPOCHS * -(-len(x) // BATCH)


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
    """Does at every 50th batch what `EverySteps` does, by looking at every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_train_batch_end(self, _batch, logs=None):
        self.seen += 1
        if self.seen % 50 == 0:
            float(logs["loss"])


def rate(step: TrainingStep | None, *callbacks: keras.callbacks.Callback) -> float:
    """Steps a second of a whole training, tracing left out."""
    order = TrialSeeds(0, 0).sequence("order")
    model, data = network(0.001), Data(train=(x, y), batch_size=BATCH)
    plan = TrainingPlan(model, data, callbacks, EPOCHS, (), order)
    if step is not None:
        step.bind(model)
        plan = replace(plan, step=step)
    loop = TrainingLoop(plan, Silent())
    started = time.perf_counter()
    loop.run()
    return STEPS / (time.perf_counter() - started)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    configure_tensorflow(threads=1, deterministic=True)
    keras.utils.set_random_seed(0)
    rate(None)
    ours, theirs = alternate(lambda: rate(TrainingStep()), lambda: rate(None), rounds)
    every, each = alternate(
        lambda: rate(TrainingStep(), EverySteps(50, lambda *_given: None)),
        lambda: rate(TrainingStep(), PerBatch()),
        max(2, rounds // 2),
    )
    ratios = (
        Ratio(
            "a TrainingStep with all defaults against the compiled train_step",
            ours,
            theirs,
            "steps/s",
            0.95,
            at_most=False,
        ),
        Ratio("EverySteps(50) against a callback for every batch", every, each, "steps/s"),
    )
    for ratio in ratios:
        print(ratio.line())
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
