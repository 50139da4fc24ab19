"""What evaluating costs beyond its work, printed by ``python benchmarks/evaluate_speed.py``.

Twenty checkpoints of one trial, measured by a process of `sweeper evaluate`, against reading each
once and predicting on the same data twenty times with one model. Both are measured in turn in this
process, in rounds, start-up aside on both sides: the model is built, and its step traced, once. What
the process of an evaluation needs beside that (a fork, the factories, the trace) is printed as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from digits import network
from ratios import Ratio, alternate

from sweeper import Data
from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot
from sweeper.checkpoint.reading import load_checkpoint
from sweeper.checkpoint.store import CheckpointStore
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.loop.testing import CheckpointTests
from sweeper.train.randomness.seeds import TrialSeeds
from sweeper.train.sources.opening import open_held_out
from sweeper.train.state.variables import Variables

CHECKPOINTS = 20
SAMPLES = int(os.environ.get("SWEEPER_BENCHMARK_SAMPLES", "20000"))
BATCH = 32
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "5"))


def write_checkpoints(model: keras.Model, directory: Path) -> list[Path]:
    """Checkpoints of a training of the model: its variables and its optimizer's, others in each."""
    store = CheckpointStore(directory)
    model.optimizer.build(model.trainable_variables)
    paths = []
    for step in range(CHECKPOINTS):
        for variable in model.trainable_variables:
            variable.assign_add(np.full(variable.shape, 1e-3, "float32"))
        tensors: dict[str, Any] = {}
        parts = (
            Variables("model", lambda: model.variables),
            Variables("optimizer", lambda: model.optimizer.variables),
        )
        state = {part.name: part.capture(tensors) for part in parts}
        paths.append(
            store.commit(Snapshot(step + 1, step + 1, tensors, state, {}, tuple(tensors))).path
        )
    return [path for path in paths if isinstance(path, Path)]


def read(paths: Sequence[Path]) -> list[LoadedCheckpoint]:
    return [load_checkpoint(path) for path in paths]


def main() -> int:
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(SAMPLES, 64)).astype("float32")
    y = numbers.integers(0, 10, SAMPLES)
    model = network(1e-3)
    data = Data(test=(x, y), batch_size=BATCH)
    held_out = open_held_out(data, print)
    assert held_out is not None
    sequence = TrialSeeds(0, 0).sequence("evaluation")
    began = time.perf_counter()
    tests = CheckpointTests(
        TrainingPlan(model, data, (), 1, (), TrialSeeds(0, 0).sequence("order")),
        held_out,
        sequence,
        print,
    )
    print(f"tracing the test step, once: {time.perf_counter() - began:.2f} s")
    with tempfile.TemporaryDirectory() as directory:
        paths = write_checkpoints(model, Path(directory))
        tests.run(load_checkpoint(paths[0]))
        model.predict(x, batch_size=BATCH, verbose=0)

        def evaluate() -> float:
            began = time.perf_counter()
            for path in paths:
                tests.run(load_checkpoint(path))
            return time.perf_counter() - began

        def read_and_predict() -> float:
            began = time.perf_counter()
            read(paths)
            for _ in paths:
                model.predict(x, batch_size=BATCH, verbose=0)
            return time.perf_counter() - began

        ours, theirs = alternate(evaluate, read_and_predict, ROUNDS)
    ratio = Ratio(
        f"evaluating {CHECKPOINTS} checkpoints on {SAMPLES:,} samples in batches of {BATCH}, "
        "against reading them once and predicting as often",
        ours,
        theirs,
        "s",
        1.5,
        at_most=True,
    )
    print(ratio.line())
    return 0 if ratio.holds else 1


if __name__ == "__main__":
    sys.exit(main())
