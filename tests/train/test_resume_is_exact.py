"""A training stopped after any step and resumed ends bit-identical to one that never stopped.

Every component of the state has its negative control: leave it out, and the comparison fails.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import (
    Watcher,
    digits,
    equal,
    leave_out,
    mlp,
    one_layer,
    plan,
    small_data,
    train,
    unvalidated,
    weights,
    without_component,
)

from sweeper import Data
from sweeper.checkpoint.format import LoadedCheckpoint
from sweeper.checkpoint.reading import load_checkpoint, load_newest
from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.state import state as state_module

Planner = Callable[[], TrainingPlan]


class Noise(keras.layers.Layer):
    """Draws from every random source that is global: Keras's, and NumPy's and Python's by way of
    the callback below."""

    def call(self, x, training=False):
        return x + keras.random.normal(keras.ops.shape(x), stddev=0.01) if training else x


class Jitter(keras.callbacks.Callback):
    """Changes weights at random at an epoch's end, and counts."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.drawn = []

    def on_train_begin(self, logs=None):
        keras.config.set_epsilon(1e-7)

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count % 3 == 0:
            eager = float(tf.random.uniform(())) + float(tf.random.uniform((), seed=1))
            shared = float(TRACKED["generator"].uniform(())) + TRACKED["halves"].next()
            keras.config.set_epsilon(keras.config.epsilon() * 1.5)
            unseeded = np.random.default_rng().random() + keras.config.epsilon()
            self.drawn.append(unseeded + random.random() + float(np.random.rand()) + eager + shared)
            self.model.beta *= 0.9
            kernel = self.model.layers[1].kernel
            change = 0.001 * self.model.beta * self.drawn[-1]
            kernel.assign_add(change * keras.ops.ones_like(kernel))


class Tells(keras.callbacks.Callback):
    """Counts, and tells and takes its count by methods of its own."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def get_state(self):
        return self.calls

    def set_state(self, state):
        self.calls = state

    def on_train_batch_end(self, batch, logs=None):
        self.calls += 1
        bias = self.model.layers[1].bias
        bias.assign_add(1e-4 * self.calls * keras.ops.ones_like(bias))


class Halves:
    """Numbers that get smaller, with methods for its own state."""

    def __init__(self):
        self.last = 1.0

    def next(self):
        self.last /= 2
        return self.last

    def get_state(self):
        return self.last

    def set_state(self, state):
        self.last = state


TRACKED = {}
"""What the newest plan tracks by name; a module's variable is nothing that a callback carries."""


def tracked():
    TRACKED["generator"] = tf.random.Generator.from_seed(3)
    TRACKED["halves"] = Halves()
    return TRACKED


class Sources:
    """A plain object, into which Keras does not look."""

    def __init__(self):
        self.generator = keras.random.SeedGenerator(5)


class Carrier(keras.Model):
    """Carries what is in none of Keras's lists, and lets all of it act on its weights."""

    def __init__(self, **options):
        super().__init__(**options)
        self.beta = 1.0
        self.sources = Sources()
        self.scale = keras.Variable(0.0, trainable=False, name="scale")
        self.side_optimizer = keras.optimizers.Adam(0.1)

    def train_step(self, data):
        logs = super().train_step(data)
        target = keras.random.normal((), seed=self.sources.generator)
        self.side_optimizer.apply([self.scale - target], [self.scale])
        return logs


def noisy(*, eager=False):
    inputs = keras.Input((8,))
    x = keras.layers.Dense(4)(inputs)
    x = Noise()(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.3)(x)
    model = Carrier(inputs=inputs, outputs=keras.layers.Activation("softmax")(x))
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        run_eagerly=eager,
    )
    return model


def eager():
    return noisy(eager=True)


def watchful():
    return [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2, factor=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        Jitter(),
        Tells(),
    ]


def noisy_plan(model, data, epochs):
    return plan(model=model, data=data, callbacks=watchful, epochs=epochs, tracked=tracked)


def planner():
    return noisy_plan(noisy, small_data, 4)


class ShufflesItself(keras.utils.PyDataset):
    """Arrays need no state of their data; this does."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(100)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = digits()
        chosen = self.order[index * 34 : index * 34 + 34]
        return x[chosen], y[chosen]

    def on_epoch_end(self):
        self.order = self.order[::-1].copy()

    def get_state(self):
        return self.order

    def set_state(self, state):
        self.order = state


def in_few_batches():
    """Three an epoch, as the others below have them."""
    return small_data(batch_size=34)


def shuffling_itself():
    return Data(train=ShufflesItself(), validation=digits(30))


def drawing_anew():
    """A function of the epoch that shuffles by a generator which goes on from epoch to epoch."""
    drawn = np.random.default_rng(8)

    def batches(epoch):
        x, y = digits()
        order = drawn.permutation(100)
        for begin in range(0, 100, 34):
            chosen = order[begin : begin + 34]
            yield x[chosen], y[chosen]

    return Data(train=batches, validation=digits(30))


DATA = {"data": shuffling_itself, "reopening": drawing_anew}
"""What has a state that arrays have not."""


def outcome(loop, planned):
    attributes = {"history": loop.history.history, "epochs": loop.history.epoch}
    for callback in planned.callbacks:
        for name in ("wait", "best", "count", "drawn", "best_epoch", "stopped_epoch"):
            if hasattr(callback, name):
                attributes[f"{type(callback).__name__}.{name}"] = getattr(callback, name)
    return weights(planned.model), attributes


def uninterrupted(make=planner):
    planned = make()
    return outcome(train(planned, Watcher()), planned)


def interrupted(directory, stops, make=planner):
    """Stop after each of ``stops`` steps, each time going on in fresh objects."""
    for stop in [*stops, None]:
        planned = make()
        watcher = Watcher(directory, stop_at=stop)
        loop = train(planned, watcher, load_newest([directory], pytest.fail))
        if stop is None:
            return outcome(loop, planned)
    raise AssertionError


def same(a, b):
    return equal(a[0], b[0]) and a[1] == b[1]


@pytest.fixture(scope="module")
def whole():
    return uninterrupted()


@pytest.fixture(scope="module")
def snapped(tmp_path_factory):
    """The same with a checkpoint at every step, and these."""
    planned = planner()
    watcher = Watcher(tmp_path_factory.mktemp("snapped"), snapshot_at=lambda _position: True)
    return outcome(train(planned, watcher), planned), watcher.kept


# By default the first step, an epoch's last and one inside an epoch, in turn; the first step's
# checkpoint is one that a training took on its way.
@pytest.mark.whole
@pytest.mark.parametrize(
    ("first", "stops"),
    [
        pytest.param(1, [7, 17], id="few"),
        pytest.param(0, [2, 3, 7, 12, 19, 21, 26], id="many", marks=pytest.mark.whole),
        *(pytest.param(0, [stop], marks=pytest.mark.whole) for stop in (1, 6, 7, 10, 14, 27)),
    ],
)
def test_a_training_stopped_many_times_ends_as_if_it_never_was(
    first, stops, whole, snapped, tmp_path
):
    for path in snapped[1][:first]:
        shutil.copytree(path, tmp_path / path.name)
        assert load_checkpoint(path).step == first
    assert same(interrupted(tmp_path, stops), whole)


COMPONENTS = [
    "parts",
    "data",
    "reopening",
    "model",
    "optimizer",
    "optimizers",
    "metrics",
    "reachable",
    "user_state",
    "tracked",
    "global_seed_generator",
    "keras_settings",
    "python_random",
    "numpy_random",
    "tensorflow_random",
    "history",
    "callbacks",
    "fresh_entropy",
    "eager_operations",
]


SEEDS_OF_LAYERS = "the layers' seeds"
"""A part of the model's variables, and no component by itself."""


@dataclass(frozen=True)
class Whole:
    """A training's checkpoint on its way, inside its second epoch, and its end."""

    make: Planner
    loaded: LoadedCheckpoint
    expected: tuple[list[Any], dict[str, Any]]

    def resumed(self, loaded):
        made = self.make()
        return outcome(train(made, Watcher(), loaded), made)


@pytest.fixture(scope="module")
def on_its_way(tmp_path_factory):
    """One training of each kind, from which everything that is left out is left out in turn."""

    @cache
    def of(data, model, epochs):
        def make():
            return noisy_plan(model, data, epochs)

        planned = make()
        directory = tmp_path_factory.mktemp("whole")
        watcher = Watcher(directory, lambda position: position.step == 5, block=1)
        expected = outcome(train(planned, watcher), planned)
        loaded = load_checkpoint(watcher.kept[0])
        assert loaded.step == 5
        found = Whole(make, loaded, expected)
        assert same(found.resumed(loaded), expected), "nothing is left out"
        return found

    return of


# Steps that run eagerly need no trace, and leave the same state behind.
@pytest.mark.parametrize(
    ("model", "epochs"),
    [
        pytest.param(eager, 2, id="eager"),
        pytest.param(noisy, 4, id="graph", marks=pytest.mark.whole),
    ],
)
@pytest.mark.parametrize("left_out", [*COMPONENTS[1:], SEEDS_OF_LAYERS])
def test_leaving_out_a_component_is_noticed(left_out, model, epochs, on_its_way, monkeypatch):
    """Negative control of each component: without it, the resumed training ends elsewhere."""
    whole = on_its_way(DATA.get(left_out, in_few_batches), model, epochs)
    if left_out == SEEDS_OF_LAYERS:
        loaded = whole.loaded
        leave_out_seeds(monkeypatch)
    else:
        loaded = without_component(whole.loaded, left_out)
        leave_out(monkeypatch, left_out)
    assert not same(whole.resumed(loaded), whole.expected)


def leave_out_seeds(patch):
    """Restore all variables of a model but those of its layers' seed generators."""
    restore = state_module.Variables.restore

    def without(self, saved, tensors):
        if self.name != "model":
            restore(self, saved, tensors)
            return
        variables = [v for v in self._variables() if "seed" in v.path]
        assert variables
        begun = [v.numpy() for v in variables]
        restore(self, saved, tensors)
        for variable, value in zip(variables, begun, strict=True):
            assert not np.array_equal(variable.numpy(), value)
            variable.assign(value)

    patch.setattr(state_module.Variables, "restore", without)


def test_a_training_with_other_weights_differs(on_its_way):
    whole = on_its_way(in_few_batches, eager, 2)
    other = whole.make()
    other.model.layers[1].kernel.assign_add(keras.ops.ones((8, 4)) * 1e-6)
    assert not same(outcome(train(other, Watcher()), other), whole.expected)


def test_an_optimizer_that_is_exchanged_is_refused_by_the_component_of_the_parts(monkeypatch):
    class Exchanges(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer = keras.optimizers.SGD(0.1)

    def make():
        return plan(model=one_layer, data=unvalidated, callbacks=lambda: [Exchanges()], epochs=1)

    with pytest.raises(UncapturableError, match=r"model\.optimizer was replaced during training"):
        train(make(), Watcher())
    leave_out(monkeypatch, "parts")
    train(make(), Watcher())


def test_every_component_has_its_negative_control():
    loop = TrainingLoop(noisy_plan(eager, small_data, 1), Watcher())
    assert [c.name for c in loop._state.components] == COMPONENTS


@pytest.mark.whole
def test_snapshots_at_every_step_perturb_nothing(whole, snapped):
    ended, kept = snapped
    assert same(ended, whole)
    assert len(kept) == 28, "one at each of 28 steps, an epoch's last after its validation"


def test_a_stop_after_the_decision_to_stop_early_does_not_train_on(tmp_path):
    def make():
        stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)
        return plan(model=one_layer, callbacks=lambda: [stopping], epochs=9)

    planned, watcher = make(), Watcher(tmp_path)
    expected = outcome(train(planned, watcher), planned)
    assert len(watcher.kept) == 1, "the last state is kept before on_train_end changes it"
    assert same(interrupted(tmp_path, [], make), expected)
    assert expected[1]["epochs"] == [0, 1]


def test_a_callback_that_stops_inside_an_epoch_ends_it_there_also_when_resumed(tmp_path):
    class StopsAtTen(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.count = 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1
            if self.count == 10:
                self.model.stop_training = True

    def make():
        return plan(model=one_layer, data=unvalidated, callbacks=lambda: [StopsAtTen()], epochs=5)

    expected = uninterrupted(make)
    assert same(interrupted(tmp_path, [10], make), expected)
    assert expected[1]["StopsAtTen.count"] == 10


def test_a_model_of_another_shape_is_refused_with_every_mismatch_named(tmp_path):
    train(plan(model=mlp, data=unvalidated), Watcher(tmp_path, stop_at=5))
    loaded = load_newest([tmp_path], pytest.fail)

    def wider():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(17), keras.layers.Dense(4)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with pytest.raises(RestoreError) as raised:
        train(plan(model=wider, data=unvalidated), Watcher(), loaded)
    message = str(raised.value)
    assert "model variable 0" in message
    assert "float32[8, 17], and float32[8, 16] in it" in message
    assert "is in the checkpoint only" in message
    assert "undo the change" in message


def test_a_restore_that_fails_changes_nothing(tmp_path):
    train(plan(model=one_layer, data=unvalidated), Watcher(tmp_path, stop_at=5))
    loaded = load_newest([tmp_path], pytest.fail)
    planned = plan(
        model=one_layer, data=unvalidated, callbacks=lambda: [keras.callbacks.EarlyStopping()]
    )
    before = weights(planned.model)
    with pytest.raises(RestoreError, match="EarlyStopping"):
        train(planned, Watcher(), loaded)
    assert equal(weights(planned.model)[: len(before)], before)


def test_a_stateful_random_op_in_the_step_is_refused_by_name():
    class Stateful(keras.layers.Layer):
        def call(self, x):
            return x + 1e-3 * tf.raw_ops.RandomUniform(shape=tf.shape(x), dtype=x.dtype, seed=1)

    def model():
        built = keras.Sequential([keras.Input((8,)), Stateful(), keras.layers.Dense(4)])
        built.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return built

    with pytest.raises(UncapturableError, match=r"RandomUniform .*SeedGenerator"):
        TrainingLoop(plan(model=model, data=small_data), Watcher())
