"""What a checkpoint costs, as ratios printed by one command: ``python benchmarks/checkpoint_cost.py``.

A network of about 100 MB of weights and Adam slots.

1. Time that the training thread loses to one checkpoint, the slower steps after it included, against
   what it loses in the same way to Keras's BackupAndRestore and TensorFlow's CheckpointManager.
   With two sizes of batch: short steps, which the background write disturbs most, and longer ones.
2. The background writer's throughput against a plain buffered write of the same bytes, and fsync.
3. From process start to the first new step: a resumed trial against a fresh one.
4. Memory at the peak of a checkpoint, against the state itself.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from ratios import Ratio, alternate

from sweeper.checkpoint.store import CheckpointStore
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.declarations.checkpointing import Keep
from sweeper.support.tensorflow_start import configure_tensorflow
from sweeper.train.data import PartName, SourceOptions
from sweeper.train.loop.runners import make_runner
from sweeper.train.randomness.hidden_state import HiddenState
from sweeper.train.sources.arrays import ArraySource
from sweeper.train.state.state import HistoryRecord, Position, TrainingState, default_components
from sweeper.train.userstate import Roots

WIDTH = 2880
BATCHES = (16, 128)
"""Samples a step: of the first, a step does little but update; of the second, it also computes."""
AFTER = 5
"""Steps after a checkpoint in which what it costs may show."""
ROUNDS = int(os.environ.get("SWEEPER_BENCHMARK_ROUNDS", "9"))


def network() -> keras.Model:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH)])
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


def state_bytes(model: keras.Model) -> int:
    model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    return sum(int(np.prod(v.shape)) * 4 for v in variables)


class Training:
    """One-step calls of a compiled train step, with a snapshot whenever asked."""

    def __init__(self, directory: Path, batch: int = BATCHES[0]) -> None:
        self.directory = directory
        self.model = network()
        generator = np.random.default_rng(0)
        self.x = tf.constant(generator.normal(size=(batch, WIDTH)).astype("float32"))
        self.model.optimizer.build(self.model.trainable_variables)
        self.step = tf.function(lambda: self.model.train_step((self.x, self.x)))
        for _ in range(3):
            self.step()
        history = keras.callbacks.History()
        history.on_train_begin()
        samples = np.zeros((batch, WIDTH), "float32")
        source = ArraySource(
            (samples, samples), SourceOptions(PartName("train"), print), batch_size=batch
        )
        components = default_components(
            Roots(self.model, []),
            HistoryRecord(history),
            make_runner(self.model, source, self.model.train_step, None),
            None,
            notify=print,
            hidden=HiddenState(np.random.SeedSequence(0)),
        )
        self.state = TrainingState(components)
        self.state.begin()
        self.taken = 0

    def steps(self, count: int = 3) -> float:
        started = time.perf_counter()
        for _ in range(count):
            for value in self.step().values():
                value.numpy()
        return time.perf_counter() - started

    def snapshot(self):
        self.taken += 1
        return self.state.capture(Position(step=self.taken), {})


def lost_time(directory: Path, batch: int) -> list[Ratio]:
    """What one checkpoint takes from the training thread, for three ways of taking it.

    All three are measured alike: the time of the call and of the `AFTER` steps that follow it, less
    that of as many steps just before and, when all is written, just after (their mean), because a
    noisy machine's pace changes by more than a checkpoint costs. Before each, the disk is idle and
    nothing is in flight, so none pays for what another left behind; who begins changes from round
    to round. A write that is still in flight after those steps has cost them what it could, and is
    counted and told.
    """
    training = Training(directory, batch)
    store = CheckpointStore(directory / "ours")
    backup = keras.callbacks.BackupAndRestore(str(directory / "backup"), save_freq="epoch")
    backup.set_model(training.model)
    backup.on_train_begin()
    checkpoint = tf.train.Checkpoint(model=training.model, optimizer=training.model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, str(directory / "manager"), max_to_keep=2)
    late = []
    with BackgroundWriter(store, Keep(last=2), lambda _c: None, lambda _p: None) as writer:
        ways: list[tuple[str, Callable[[], object]]] = [
            ("ours", lambda: writer.submit(training.snapshot())),
            ("backup", lambda: backup.on_epoch_end(training.taken)),
            ("manager", manager.save),
        ]
        lost: dict[str, list[float]] = {name: [] for name, _ in ways}
        for turn in range(2 * ROUNDS + 1):
            for name, way in ways[turn % 3 :] + ways[: turn % 3]:
                os.sync()
                training.steps(2)
                before = training.steps(AFTER)
                started = time.perf_counter()
                way()
                training.steps(AFTER)
                with_one = time.perf_counter() - started
                late.append(name == "ours" and bool(writer._thread and writer._thread.is_alive()))
                writer.flush()
                os.sync()
                training.steps(2)
                without = (before + training.steps(AFTER)) / 2
                if turn:
                    lost[name].append((with_one - without) * 1000)
    print(
        f"batch {batch}: {sum(late)} of {2 * ROUNDS + 1} writes outlasted the {AFTER} steps after"
    )
    return [
        Ratio(f"1a. training time lost, batch {batch}, against BackupAndRestore",
              lost["ours"], lost["backup"], "ms", 0.1, True),
        Ratio(f"1b. training time lost, batch {batch}, against CheckpointManager",
              lost["ours"], lost["manager"], "ms", 0.2, True),
    ]  # fmt: skip


def throughput(directory: Path) -> Ratio:
    training = Training(directory)
    size = state_bytes(training.model)
    payload = os.urandom(1 << 20) * (size // (1 << 20))
    number = iter(range(10_000))

    def ours() -> float:
        attempt_directory = directory / f"writer-{next(number)}"
        with BackgroundWriter(
            CheckpointStore(attempt_directory), Keep(), lambda _c: None, lambda _p: None
        ) as writer:
            snapshot = training.snapshot()
            started = time.perf_counter()
            writer.submit(snapshot)
            writer.flush()
            seconds = time.perf_counter() - started
        shutil.rmtree(attempt_directory)
        return size / seconds / 1e6

    def plain() -> float:
        path = directory / f"plain-{next(number)}"
        started = time.perf_counter()
        with path.open("wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - started
        path.unlink()
        return len(payload) / seconds / 1e6

    ours(), plain()
    mine, theirs = alternate(ours, plain, ROUNDS)
    return Ratio(
        "2. background write, against a plain write and fsync", mine, theirs, "MB/s", 0.8, False
    )


def first_step(directory: Path, *, resumed: bool) -> tuple[float, float]:
    """Seconds from process start to the first new step's end, and seconds to read the file once."""
    attempt_directory = directory / ("resumed" if resumed else f"fresh-{time.time_ns()}")
    started = time.time()
    said = subprocess.run(
        [sys.executable, __file__, "first-step", str(attempt_directory)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return float(said[-2]) - started, float(said[-1])


def resume(directory: Path) -> Ratio:
    first_step(directory, resumed=True)
    resumed, fresh = [], []
    for _ in range(ROUNDS):
        seconds, reading = first_step(directory, resumed=True)
        resumed.append(seconds - reading)
        fresh.append(first_step(directory, resumed=False)[0])
    return Ratio(
        "3. process start to the first step, resumed (less reading once) against fresh",
        resumed, fresh, "s", 1.2, True,
    )  # fmt: skip


def first_step_main(attempt_directory: Path) -> None:
    """In a process of its own: one epoch of one step by `sweeper.fit`, then say when it was over."""
    import sweeper

    configure_tensorflow(threads=1, deterministic=True)
    keras.utils.set_random_seed(0)

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, _batch, _logs=None, **_more):
            print(time.time(), flush=True)

    newest = sorted(attempt_directory.glob("step-*"))
    reading = 0.0
    if newest:
        started = time.perf_counter()
        for file in newest[-1].iterdir():
            file.read_bytes()
        reading = time.perf_counter() - started
    x = np.random.default_rng(0).normal(size=(16, WIDTH)).astype("float32")
    data = sweeper.Data(train=(x, x), batch_size=16)
    done = int(newest[-1].name.split("-")[1]) if newest else 0
    sweeper.fit(
        network(),
        data,
        epochs=done + 1,
        verbose=0,
        callbacks=[Clock()],
        checkpoints=attempt_directory,
    )
    print(reading)


def peak_memory(directory: Path) -> Ratio:
    said = subprocess.run(
        [sys.executable, __file__, "memory", str(directory / "memory")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return Ratio("4. memory at the peak of a checkpoint, against the state",
                 [float(said[-2])], [float(said[-1])], "MB", 1.0, True)  # fmt: skip


def memory_main(directory: Path) -> None:
    """In a process of its own: how far the peak rises while checkpoints are written."""
    training = Training(directory)
    training.steps()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again from here
    before = memory("VmRSS")
    with BackgroundWriter(
        CheckpointStore(directory), Keep(), lambda _c: None, lambda _p: None
    ) as writer:
        for _ in range(4):
            writer.submit(training.snapshot())
            training.steps()
    print((memory("VmHWM") - before) / 1000, state_bytes(training.model) / 1e6)


def memory(name: str) -> int:
    """This process's ``name``, in kB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> int:
    if sys.argv[1:2] == ["first-step"]:
        first_step_main(Path(sys.argv[2]))
        return 0
    configure_tensorflow(threads=1, deterministic=True)
    keras.utils.set_random_seed(0)
    if sys.argv[1:2] == ["memory"]:
        memory_main(Path(sys.argv[2]))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        ratios = [
            *(ratio for n in BATCHES for ratio in lost_time(directory / f"batch-{n}", n)),
            throughput(directory),
            resume(directory),
            peak_memory(directory),
        ]
    for ratio in ratios:
        print(ratio.line())
    size = state_bytes(network()) / 1e6
    print(f"state: {size:.0f} MB; medians of {ROUNDS} rounds, of lost time {2 * ROUNDS}")
    return 0 if all(ratio.holds for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
