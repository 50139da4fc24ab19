"""Program of the self-test of an environment: one small training, whole and killed, compared.

``python -m sweeper.api.self_test DIRECTORY`` imports TensorFlow, runs nothing, and forks three
processes: one trains without an interruption, one is killed inside an epoch after a checkpoint, one resumes
from it. The training uses what depends on private names of Keras and TensorFlow: dropout and
noise (seed generators), batch normalization, a learning-rate schedule, an optimizer with slots, Keras's and
own callbacks, Keras's global random generator, and a shuffled ``tf.data`` pipeline. The last line that it
prints is a JSON list of what differed; an empty list means that the resume was exact.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.api.fit import fit
from sweeper.checkpoint.reading import list_checkpoints
from sweeper.replay.comparison import compare_checkpoints
from sweeper.spec.checkpointing import Every
from sweeper.train.data import Data

_EPOCHS = 3
_EXAMPLES, _BATCH = 48, 8
_KILLED_AT = 9
"""Step at which the second process is killed: inside the second epoch of six steps."""

_KILLED = 9
"""Exit code of the killed process."""


class _Counting(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback with a counter and a random number that its own state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.drawn: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self.batches += 1
        if self.batches % 4 == 0:
            self.drawn.append(float(keras.random.uniform(())))


class _Killed(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that ends its process without a chance to clean up, once a checkpoint is committed.

    Every process has it, because a resumed training must have the same callbacks.
    """

    def __init__(self, checkpoints: Path, *, armed: bool) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._armed = armed

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        steps = int(self.model.optimizer.iterations)
        if self._armed and steps >= _KILLED_AT and list_checkpoints(self._checkpoints):
            os._exit(_KILLED)


def train(checkpoints: Path, *, killed: bool = False) -> keras.callbacks.History:
    """Train the test's model, or resume its training, in this process."""
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(_EXAMPLES, 6)).astype("float32")
    labels = generator.integers(0, 3, _EXAMPLES)
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels)).shuffle(32, seed=5).batch(_BATCH)
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 30)
    model.compile(
        keras.optimizers.Adam(schedule, use_ema=True),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    watching = keras.callbacks.EarlyStopping(monitor="loss", patience=9)
    return fit(
        model,
        Data(train=batches, validation=(inputs, labels), batch_size=_BATCH),
        epochs=_EPOCHS,
        checkpoints=checkpoints,
        callbacks=[_Counting(), watching, _Killed(checkpoints, armed=killed)],
        checkpoint_every=Every(steps=4),
        seed=11,
    )


def differences(directory: Path) -> list[str]:
    """Train in three processes, and return what differs between the whole training and the resumed one."""
    whole, resumed = directory / "whole", directory / "resumed"
    beside = [
        _Process("the uninterrupted training", lambda: train(whole)),
        _Process("the training before the kill", lambda: train(resumed, killed=True), _KILLED),
    ]
    problems = [problem for process in beside for problem in process.problems()]
    if problems:
        return problems
    if not list_checkpoints(resumed):
        return ["no checkpoint was written before the kill"]
    if problems := _Process("the resumed training", lambda: train(resumed)).problems():
        return problems
    first, second = (list_checkpoints(each)[-1] for each in (whole, resumed))
    if first.name != second.name:
        return [f"the whole training ended at {first.name}, the resumed one at {second.name}"]
    found = compare_checkpoints(first, second)
    return [str(difference) for difference in found if difference.level == "error"]


class _Process:
    """Forked process that trains; created, it runs."""

    def __init__(self, what: str, work: Callable[[], object], expected: int = 0) -> None:
        self._what, self._expected = what, expected
        reading, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(reading)
            try:
                work()
            except BaseException:
                with os.fdopen(writing, "w") as report:
                    report.write(traceback.format_exc().strip().splitlines()[-1])
                os._exit(1)
            os._exit(0)
        os.close(writing)
        self._report = os.fdopen(reading)

    def problems(self) -> list[str]:
        """Wait for the end; return a description of the failure, if the process failed."""
        with self._report as report:
            said = report.read()
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        if code == self._expected:
            return []
        return [f"{self._what}: {said or f'exit code {code}, expected {self._expected}'}"]


if __name__ == "__main__":
    print(json.dumps(differences(Path(sys.argv[1]))))  # noqa: T201 - read by the process that started it
