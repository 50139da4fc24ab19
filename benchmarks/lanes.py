"""Trainings as lanes of one graph against the same trainings one after another, in our loop.

What fusing saves is the launch of operations, so the gain depends on the size of the network and on
the number of lanes. Both sides train the digits for the same epochs, in request, with validation,
snapshots aside; the start and the traces are left out.

``sweeps`` measures whole commands instead, everything included: a study with lanes against the same study
with a process for each trial, on two workers, and the most memory that their processes had to themselves::

    python benchmarks/lanes.py [EPOCHS] [LANES …]
    python benchmarks/lanes.py sweeps [TRIALS EPOCHS LANES [ROUNDS]]
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import psutil
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


@dataclass
class Command:
    """One run of ``sweeper run``: its wall and processor seconds, and its processes' peak memory."""

    lanes: int
    seconds: float = 0.0
    processor: float = 0.0
    memory: float = 0.0

    def run(self, trials: int, epochs: int) -> float:
        environment = {
            **os.environ,
            "SWEEPER_BENCHMARK_TRIALS": str(trials),
            "SWEEPER_BENCHMARK_EPOCHS": str(epochs),
            "SWEEPER_BENCHMARK_LANES": str(self.lanes),
        }
        with tempfile.TemporaryDirectory() as runs:
            words = ["run", str(Path(__file__).with_name("lanes_study.py")), "--workers", "2"]
            began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            process = psutil.Popen(
                [sys.executable, "-m", "sweeper", *words, "--runs-dir", runs],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while process.poll() is None:
                self.memory = max(self.memory, _memory(process))
                time.sleep(0.25)
            assert process.wait() == 0
            self.seconds = time.perf_counter() - began
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        return self.seconds


def _memory(process: psutil.Process) -> float:
    """Megabytes that no other process has, of a command's trial processes together."""
    found = 0.0
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += each.memory_full_info().uss / 2**20
    return found


def sweeps(trials: int, epochs: int, lanes: int, rounds: int) -> None:
    """Print how a study with lanes does against the same one without."""
    apart, fused = Command(1), Command(lanes)
    processor: list[tuple[float, float]] = []
    walls: list[tuple[float, float]] = []
    for _ in range(rounds):
        walls.append((apart.run(trials, epochs), fused.run(trials, epochs)))
        processor.append((apart.processor, fused.processor))
    what = f"{trials} trials of {epochs} epochs, a process each, against {lanes} lanes"
    for shown, pairs in (("whole commands", walls), ("processor time", processor)):
        ours, theirs = zip(*pairs, strict=True)
        print(Ratio(f"{what}: {shown}", ours, theirs, "s").line())
    print(Ratio(f"{what}: memory", [apart.memory], [fused.memory], "MB").line(), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["sweeps"]:
        given = [int(each) for each in sys.argv[2:]]
        sweeps(*given, *(16, 5, 8, 3)[len(given) :])
        return
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
