"""Small trainings, and an observer that keeps their snapshots in memory or on disk."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from sweeper import Data
from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.reading import load_newest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Stopped, TrainingPlan
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.state.state import Position

SEEDS = TrialSeeds(7, 3)


@contextmanager
def unoptimized(*passes):
    """Run graphs as they are written; TensorFlow's optimizers, or these of them, change last bits."""
    passes = passes or ("constant_folding", "arithmetic_optimization")
    tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, False))
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, True))


def digits(samples=100, features=8):
    """Random floats and labels of 4 classes, the same in every call."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(samples, features)).astype("float32")
    return x, generator.integers(0, 4, samples)


def mlp(optimizer=None):
    """Dense, BatchNorm and Dropout: weights, moving statistics and a seed generator."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 40)
    model.compile(
        optimizer=optimizer or keras.optimizers.RMSprop(schedule, momentum=0.5),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def one_layer():
    """The least that trains, for what asks nothing of the model."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def classifying():
    """The same for labels of four classes, for what needs an output of several."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return model


def dropping(**options):
    """One layer with a seed generator before it, and slots: the least that has state of each kind."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02, 0.5), "mse", **options)
    return model


def small_data(**options):
    x, y = digits()
    settings = {"batch_size": 16, "validation": (x[:30], y[:30])}
    return Data(train=(x, y), **{**settings, **options})


def unvalidated():
    return small_data(validation=None)


def untuned(dataset):
    """A dataset that TensorFlow does not tune: the thread that would can miss that its iterator ends,
    and then holds up, for seconds, whoever deletes the iterator."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@dataclass
class Watcher:
    """An observer that takes a snapshot wherever asked, and stops where asked."""

    directory: Path | None = None
    snapshot_at: Callable[[Position], bool] = lambda _position: False
    stop_at: int | None = None
    block: int = 1 << 30
    epochs: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    last: Snapshot | None = None
    digest: str = ""
    _step: int = 0

    def started(self, position, steps_per_epoch):
        del steps_per_epoch
        self._step = position.step

    def steps_done(self, position):
        self._step = position.step

    def epoch_ended(self, record, step, seconds):
        del step, seconds
        self.epochs.append((record.epoch, record.metrics))

    def steps_until_due(self, position):
        block = self.block
        if self.stop_at is not None and position.step < self.stop_at:
            block = min(block, self.stop_at - position.step)
        return max(1, block)

    def is_due(self, position):
        return self.snapshot_at(position)

    def keep(self, snapshot):
        self.last = snapshot
        if self.directory is not None:
            committed = CheckpointStore(self.directory).commit(replace(snapshot))
            self.kept.append(committed.path)
            self.digest = committed.digest

    def stop_requested(self):
        return self.stop_at is not None and self._step >= self.stop_at


HOOKS = [
    f"on_{where}_{when}"
    for where in ("epoch", "train", "test", "train_batch", "test_batch")
    for when in ("begin", "end")
]


class Recorder(keras.callbacks.Callback):
    """Records every call with all its arguments; only the hooks it is told to listen to."""

    def __init__(self, hooks):
        super().__init__()
        self.calls = []
        for hook in hooks:
            setattr(self, hook, self._recording(hook))

    def _recording(self, hook):
        def record(*arguments, logs=None):
            copies = [dict(a) if isinstance(a, dict) else a for a in arguments]
            self.calls.append((hook, *copies, None if logs is None else dict(logs)))

        return record

    def get_state(self):
        return [repr(call) for call in self.calls]

    def set_state(self, state):
        raise AssertionError(state)


def plan(
    *,
    model=dropping,
    data=small_data,
    callbacks=tuple,
    epochs=3,
    objective=None,
    tracked=dict,
    step=None,
):
    """A plan built as a trial builds it: each factory from its own seed."""

    def made(name, factory):
        seed_everything(SEEDS.child(name))
        with FreshEntropy(SEEDS.sequence(name), name):
            return factory()

    built = made("model", model)
    taken = step and made("step", step)
    if taken is not None:
        taken.bind(built)
    training_data = made("data", data)
    called = made("callbacks", callbacks)
    seed_everything(SEEDS.child("training"))
    objectives = () if objective is None else (objective,)
    order = SEEDS.sequence("order")
    return TrainingPlan(
        built,
        training_data,
        called,
        epochs,
        objectives,
        order,
        tracked=tracked(),
        output_only=(),
        step=taken,
    )


def train(planned, watcher, loaded=None):
    """Train to the end, or to where the watcher stops it or the plan pauses."""
    loop = TrainingLoop(planned, watcher)
    try:
        loop.run(loaded)
    except Stopped:
        assert watcher.stop_at is not None or planned.pause_after is not None
    return loop


def resumed(make, directory, stops=()):
    """Stop after each of ``stops`` steps, each time going on in fresh objects, then train to the end.

    What is trained at all is a row of `test_exactness_suite.py`; this is for what else is there then.
    """
    for stop in [*stops, None]:
        loaded = load_newest([directory], pytest.fail)
        loop = train(make(), Watcher(directory, stop_at=stop), loaded)
    return loop


def weights(model):
    """Copies of every model and optimizer variable, in order."""
    return [v.value.numpy().copy() for v in [*model.variables, *model.optimizer.variables]]


def equal(a, b):
    """Whether two lists of arrays are the same bit for bit."""
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )
