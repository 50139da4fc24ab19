"""What a training that is resumed refuses, and where one ends that stops early.

That it ends bit-identical to one that never stopped is in ``test_exactness_suite.py``, with the negative
control of each component.
"""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from test_exactness_suite import CASE, differing, go_on, in_files_of
from trainings import (
    Watcher,
    equal,
    leave_out,
    mlp,
    one_layer,
    plan,
    resumed,
    small_data,
    train,
    unvalidated,
    weights,
)

from sweeper.checkpoint.reading import load_newest
from sweeper.errors import RestoreError, UncapturableError
from sweeper.train.loop.loop import TrainingLoop


def outcome(loop):
    return weights(loop._plan.model), loop.history.history, loop.history.epoch


def same(a, b):
    return equal(a[0], b[0]) and a[1:] == b[1:]


def test_control_a_training_with_other_weights_differs_and_one_that_is_resumed_does_not(tmp_path):
    case = CASE["components-in_few_batches-eager"]

    def changed():
        model = case.model()
        model.layers[1].kernel.assign_add(keras.ops.ones((8, 4)) * 1e-6)
        return model

    with in_files_of(tmp_path):
        whole = go_on(case, tmp_path / "whole")
        go_on(case, tmp_path / "stopped", case.stop)
        assert differing(whole, go_on(case, tmp_path / "stopped")) == []
        other = go_on(replace(case, model=changed), tmp_path / "other")
    assert any(name.startswith("weights") for name in differing(whole, other))


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


def test_a_stop_after_the_decision_to_stop_early_does_not_train_on(tmp_path):
    def make():
        stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)
        return plan(model=one_layer, callbacks=lambda: [stopping], epochs=9)

    planned, watcher = make(), Watcher(tmp_path)
    expected = outcome(train(planned, watcher))
    assert len(watcher.kept) == 1, "the last state is kept before on_train_end changes it"
    assert same(outcome(resumed(make, tmp_path)), expected)
    assert expected[2] == [0, 1]


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

    ended = [train(make(), Watcher()), resumed(make, tmp_path, [10])]
    assert same(*map(outcome, ended))
    assert [loop._plan.callbacks[0].count for loop in ended] == [10, 10]


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
