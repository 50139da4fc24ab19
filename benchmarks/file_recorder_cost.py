"""Cost of recording files: a loop of steps that opens a file for each batch, with the recorder and without it.

Both loops run in one process, in turn; what counts is the ratio of each pair. A step computes for 0.4 ms, as a step
of a small network does; how many operations that is, is measured first, because processors differ. In one loop each
batch opens another file, in the other it appends to a log.

    python benchmarks/file_recorder_cost.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from sweeper.files.recorder import RECORDER, install

_FILES, _STEPS, _ROUNDS = 2_000, 6_000, 5
_STEP_SECONDS = 4e-4


def compute(weights: np.ndarray, batch: np.ndarray, operations: int) -> np.ndarray:
    """Return the weights after a step's operations."""
    for _ in range(operations):
        weights = np.tanh(weights * 0.9 + batch[: weights.size])
    return weights


def operations_of_a_step(weights: np.ndarray) -> int:
    """Return how many operations take `_STEP_SECONDS` on this machine."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        compute(weights, weights, 1_000)
        seconds.append(time.perf_counter() - began)
    return max(1, round(_STEP_SECONDS / min(seconds) * 1_000))


def run(files: list[Path], weights: np.ndarray, operations: int) -> float:
    """Return the seconds of all steps."""
    began = time.perf_counter()
    for step in range(_STEPS):
        batch = np.frombuffer(files[step % len(files)].read_bytes(), np.float32)
        weights = compute(weights, batch, operations)
    return time.perf_counter() - began


def logged(files: list[Path], weights: np.ndarray, operations: int) -> float:
    """Return the seconds of all steps, each of which appends a line to one file."""
    began = time.perf_counter()
    for step in range(_STEPS):
        with files[0].open("a") as log:
            log.write(f"{step}\n")
        weights = compute(weights, weights, operations)
    return time.perf_counter() - began


def main() -> None:
    """Print the median ratios with the least and the greatest."""
    install()
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory) / f"{number}.bin" for number in range(_FILES)]
        for file in files:
            file.write_bytes(np.ones(4096, np.float32).tobytes())
        weights = np.zeros(4096, np.float32)
        operations = operations_of_a_step(weights)
        for loop in (run, logged):
            ratios = []
            for _ in range(_ROUNDS):
                RECORDER.active = False
                without = loop(files, weights, operations)
                RECORDER.begin([])
                ratios.append(loop(files, weights, operations) / without)
            print(
                f"{loop.__name__}: with the recorder {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}) of without, "
                f"{without / _STEPS * 1e6:.0f} us a step; wanted: at most 1.01"
            )


if __name__ == "__main__":
    main()
