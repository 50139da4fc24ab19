"""Trainings as lanes of one graph against the same trainings one after another, in our loop.

What fusing saves is the launch of operations, so the gain depends on the size of the network and on
the number of lanes. Both sides train the digits for the same epochs, in request, with validation,
snapshots aside; the start and the traces are left out. There is no bound here: a study's are those
of whole sweeps::

    python benchmarks/lanes.py [EPOCHS] [LANES …]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import keras
from digits import BATCH, x, x_val, y, y_val
from ratios import Ratio

from sweeper import Data
from sweeper.lanes.runner import runner_of
from sweeper.lanes.scheduler import Lane, LaneScheduler
from sweeper.run.trial.devices import configure_tensorflow
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything

NETWORKS: Sequence[Sequence[int]] = ((16,), (64,), (256, 128))


class Timed:
    """An observer that keeps nothing, and notes when the first epoch was over: all is traced by then."""

    def __init__(self) -> None:
        self.warm = 0.0

    def started(self, position, steps_per_epoch): ...
    def steps_done(self, position): ...
    def keep(self, snapshot): ...

    def epoch_ended(self, *_given):
        self.warm = self.warm or time.perf_counter()

    def steps_until_due(self, _position):
        return 1 << 30

    def is_due(self, _position):
        return False

    def stop_requested(self):
        return False


def network(units: Sequence[int], number: int) -> keras.Model:
    layers: list[keras.Layer] = [keras.Input((64,))]
    for size in units:
        layers += [keras.layers.Dense(size, activation="relu"), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(
        keras.optimizers.RMSprop(1e-3 * (1 + number % 4)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def plan(units: Sequence[int], number: int, epochs: int, lane: Lane | None) -> TrainingPlan:
    seeds = TrialSeeds(0, number)
    seed_everything(seeds.child("model"))
    model = network(units, number)
    data = Data(train=(x, y), validation=(x_val, y_val), batch_size=BATCH)
    seed_everything(seeds.child("training"))
    return TrainingPlan(
        model=model,
        data=data,
        callbacks=(),
        epochs=epochs,
        objective=None,
        order_seed=seeds.sequence("order"),
        make_runner=None if lane is None else runner_of(lane),
    )


def fused(units: Sequence[int], lanes: int, epochs: int) -> float:
    """Seconds of all epochs but the first, of ``lanes`` trainings together."""
    scheduler, watchers = LaneScheduler(lanes), [Timed() for _ in range(lanes)]
    for number, watcher in enumerate(watchers):

        def train(lane: Lane, number: int = number, watcher: Timed = watcher) -> None:
            TrainingLoop(plan(units, number, epochs, lane), watcher).run()

        scheduler.add(number, train)
    scheduler.run()
    return time.perf_counter() - max(watcher.warm for watcher in watchers)


def alone(units: Sequence[int], epochs: int) -> float:
    """Seconds of all epochs but the first, of one training that is not fused."""
    watcher = Timed()
    TrainingLoop(plan(units, 0, epochs, None), watcher).run()
    return time.perf_counter() - watcher.warm


def main() -> None:
    configure_tensorflow(threads=1, deterministic=True)
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    counts = [int(each) for each in sys.argv[2:]] or [1, 8, 32]
    for units in NETWORKS:
        for lanes in counts:
            rounds = [(lanes * alone(units, epochs), fused(units, lanes, epochs)) for _ in range(3)]
            one_by_one, together = zip(*rounds, strict=True)
            shown = "-".join(map(str, (64, *units, 10)))
            print(Ratio(f"{shown}, {lanes} lanes", one_by_one, together, "s").line(), flush=True)


if __name__ == "__main__":
    main()
