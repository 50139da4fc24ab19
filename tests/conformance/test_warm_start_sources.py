"""What every file that a training can begin from promises: exact values by name, or an error.

A format is a line of `WRITERS`: a function that writes a model's values, and those of its optimizer
where the format has them. Every model of `MODELS` is written by it, once, and read into others made
anew.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from sweeper import WarmStart
from sweeper.checkpoint.store import CheckpointStore
from sweeper.errors import WarmStartError
from sweeper.train.state.state import Position, TrainingState
from sweeper.train.state.variables import Variables
from sweeper.train.warmstart.initial import match_warm_start
from sweeper.train.warmstart.source import is_random_state


class Block(keras.layers.Layer):
    """Two layers behind attributes, and a dropout with a generator of its own."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(3)
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.2)

    def call(self, x):
        return self.drop(self.norm(self.inner(x)))


class Net(keras.Model):
    """Attributes, a layer in a layer, and a weight of the model's own."""

    def __init__(self, name=None, first=None):
        super().__init__(name=name)
        self.l1 = keras.layers.Dense(5, name=first)
        self.block = Block()
        self.scale = self.add_weight(shape=(3,), name="scale", initializer="ones")

    def call(self, x):
        return self.block(self.l1(x)) * self.scale


class Other(keras.Model):
    """Without the block, with another layer."""

    def __init__(self):
        super().__init__(name="net")
        self.l1 = keras.layers.Dense(5, name="dense")
        self.other = keras.layers.Dense(3, name="tail")
        self.scale = self.add_weight(shape=(3,), name="scale", initializer="ones")

    def call(self, x):
        return self.other(self.l1(x)) * self.scale


def subclassed():
    return Net()


def functional():
    inputs = keras.Input((2,))
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, name="deep")], name="inner")
    x = keras.layers.BatchNormalization()(inner(inputs))
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(x))


def sequential():
    return keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Reshape((2, 1)),
            keras.layers.LSTM(3, recurrent_dropout=0.1),
            keras.layers.Dense(4),
            keras.layers.Dense(3),
        ]
    )


MODELS = {"subclassed": subclassed, "functional": functional, "sequential": sequential}


def built(factory, seed):
    """The model with every variable that training makes, drawn from ``seed``."""
    keras.utils.set_random_seed(seed)
    model = factory()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model(np.zeros((1, 2), "float32"))
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(seed)
    for v in (*model.variables, *model.optimizer.variables):
        if v.dtype == "float32" and v is not model.optimizer._learning_rate:
            v.assign(generator.normal(size=v.shape))
    model.optimizer.iterations.assign(seed)
    return model


@functools.cache
def written(factory):
    """The model that is written in one format after the other, and never changed."""
    return built(factory, 1)


def weights_h5(model, directory):
    model.save_weights(directory / "base.weights.h5")
    return directory / "base.weights.h5"


def keras_file(model, directory):
    model.save(directory / "base.keras")
    return directory / "base.keras"


def tf_checkpoint(model, directory):
    saved = tf.train.Checkpoint(net=model, optimizer=model.optimizer, step=tf.Variable(7))
    return Path(saved.save(str(directory / "ckpt")))


def tf_checkpoint_of_the_model(model, directory):
    return Path(tf.train.Checkpoint(model).write(str(directory / "bare")))


def sweeper_checkpoint(model, directory):
    groups = {"model": model, "optimizer": model.optimizer}
    state = TrainingState([Variables(n, lambda of=of: of.variables) for n, of in groups.items()])
    return CheckpointStore(directory / "checkpoints").commit(state.capture(Position(), {})).path


WRITERS = {
    "weights.h5": (weights_h5, False),
    "keras": (keras_file, False),
    "tf-checkpoint": (tf_checkpoint, False),
    "tf-checkpoint of the model": (tf_checkpoint_of_the_model, False),
    "sweeper": (sweeper_checkpoint, True),
}
"""Each format: what writes it, and whether the optimizer's state is taken from it."""


FORMATS = [
    pytest.param(name, marks=pytest.mark.whole if name.endswith("of the model") else ())
    for name in WRITERS
]
"""By default one of TensorFlow's checkpoints."""


@pytest.fixture(params=FORMATS, ids=str)
def writer(request):
    return WRITERS[request.param][0]


@dataclass(frozen=True)
class Source:
    """A model that was written, and where to; and of what kind, to make another."""

    model: keras.Model
    path: Path
    factory: Callable[[], keras.Model]
    has_optimizer: bool


@pytest.fixture(
    scope="module",
    params=[
        "subclassed",
        *(pytest.param(name, marks=pytest.mark.whole) for name in list(MODELS)[1:]),
    ],
    ids=str,
)
def written_model(request):
    return written(MODELS[request.param]), MODELS[request.param]


@pytest.fixture(scope="module", params=FORMATS, ids=str)
def source(request, written_model, tmp_path_factory):
    model, factory = written_model
    write, has_optimizer = WRITERS[request.param]
    return Source(model, write(model, tmp_path_factory.mktemp("source")), factory, has_optimizer)


def values(variables):
    return [v.numpy().tobytes() for v in variables if not is_random_state(v.path)]


def test_every_value_comes_back_bit_for_bit_and_what_the_source_does_later_changes_nothing(source):
    target = built(source.factory, 2)
    warm = match_warm_start(WarmStart(source.path), target)
    assert warm.report.mismatches == ()
    assert values(target.variables) != values(source.model.variables)
    optimizer_values = values(target.optimizer.variables)
    warm.assign()
    weights = values(target.variables)
    assert weights == values(source.model.variables)
    assert values(target.optimizer.variables) == optimizer_values
    originals = [(v, v.numpy()) for v in source.model.trainable_variables]
    for v, value in originals:
        v.assign(value + 1)
    assert values(source.model.variables) != weights
    assert values(target.variables) == weights
    for v, value in originals:
        v.assign(value)
    shared = {id(v) for v in source.model.variables} & {id(v) for v in target.variables}
    assert not shared


def test_the_optimizers_state_is_taken_but_for_its_learning_rate(source):
    target = built(source.factory, 2)
    target.optimizer.learning_rate.assign(0.5)
    if not source.has_optimizer:
        with pytest.raises(WarmStartError, match="is taken from a checkpoint of sweeper's only"):
            match_warm_start(WarmStart(source.path, optimizer=True), target)
        return
    warm = match_warm_start(WarmStart(source.path, optimizer=True), target)
    warm.assign()
    assert warm.report.optimizer == len(target.optimizer.variables) - 1
    assert float(target.optimizer.learning_rate.numpy()) == 0.5
    target.optimizer.learning_rate.assign(source.model.optimizer.learning_rate)
    assert values(target.optimizer.variables) == values(source.model.optimizer.variables)
    assert values(target.variables) == values(source.model.variables)


def test_random_generators_stay_the_trials_own(writer, tmp_path):
    source = written(sequential)
    target = built(sequential, 2)
    random = [v.numpy().tobytes() for v in target.variables if is_random_state(v.path)]
    assert random
    match_warm_start(WarmStart(writer(source, tmp_path)), target).assign()
    assert [v.numpy().tobytes() for v in target.variables if is_random_state(v.path)] == random


def test_what_is_missing_and_what_is_more_are_named(writer, tmp_path):
    path = writer(written(Other), tmp_path)
    target = built(lambda: Net("net", "dense"), 2)
    weights = values(target.variables)
    with pytest.raises(WarmStartError) as raised:
        match_warm_start(WarmStart(path), target)
    assert str(raised.value).count(" is not in it; looked for ") == 6, raised.value
    assert str(raised.value).count(" is in it, and not in the model") == 2, raised.value
    assert values(target.variables) == weights
    warm = match_warm_start(WarmStart(path, strict=False), target)
    assert len(warm.report.matched) == 3
    assert sorted(m.kind for m in warm.report.mismatches) == ["extra"] * 2 + ["missing"] * 6
    warm.assign()
    assert values(target.variables) != weights


def test_a_file_cut_off_is_refused(writer, tmp_path):
    path = writer(written(subclassed), tmp_path)
    target = built(subclassed, 2)
    files = [p for p in (path, *path.parent.glob(f"{path.name}.*"), *path.glob("*")) if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    content = largest.read_bytes()
    largest.write_bytes(content[: len(content) // 2])
    with pytest.raises(WarmStartError, match=str(path)):
        match_warm_start(WarmStart(path), target).assign()
