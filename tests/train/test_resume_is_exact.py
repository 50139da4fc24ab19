"""What a training that is resumed refuses, and where one ends that stops early.

That it ends bit-identical to one that never stopped is in ``test_exactness_suite.py``, with the negative
control of each component.
"""

from dataclasses import replace

import keras
import pytest
import trainings
from test_exactness_suite import CASE, differing, go_on, resumed, stop_at
from trainings import (
    Watcher,
    equal,
    mlp,
    one_layer,
    plan,
    small_data,
    train,
    unvalidated,
    weights,
)

import sweeper
from sweeper.errors import RestoreError, UncapturableError


def test_control_a_training_with_other_weights_differs_and_one_that_is_resumed_does_not(tmp_path):
    case = CASE["components-in_few_batches-eager"]

    def changed():
        model = case.model()
        model.layers[1].kernel.assign_add(keras.ops.ones((8, 4)) * 1e-6)
        return model

    whole, stopped, other = (tmp_path / name for name in ("whole", "stopped", "other"))
    for directory in (whole, stopped, other):
        directory.mkdir()
    ended = go_on(case, whole)
    stop_at(case, case.stops[0], stopped, trained=False)
    assert differing(ended, resumed(case, stopped)) == []
    apart = differing(ended, go_on(replace(case, model=changed), other))
    assert any(name.startswith("weights") for name in apart)


def test_an_optimizer_that_is_exchanged_is_refused(tmp_path):
    class Exchanges(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer = keras.optimizers.SGD(0.1)

    with pytest.raises(UncapturableError, match=r"model\.optimizer was replaced during training"):
        sweeper.fit(
            one_layer(), unvalidated(), epochs=1, checkpoints=tmp_path, callbacks=[Exchanges()]
        )


class Idle(keras.callbacks.Callback):
    """Has no state."""


def test_a_fit_without_a_callback_of_its_checkpoint_is_refused_in_words_of_fit(tmp_path):
    sweeper.fit(one_layer(), unvalidated(), epochs=1, checkpoints=tmp_path, callbacks=[Idle()])
    with pytest.raises(RestoreError) as raised:
        sweeper.fit(one_layer(), unvalidated(), epochs=2, checkpoints=tmp_path)
    message = str(raised.value)
    assert "is of a training with callback Idle, and this one has no callbacks\n" in message
    assert message.endswith("or give the changed training another directory (checkpoints=…)")
    assert "study" not in message


class StopsAt(keras.callbacks.Callback):
    """Ends the training inside an epoch."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        self.model.stop_training = self.count == self.step


def early():
    return keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)


@pytest.mark.parametrize(
    ("stops_early", "data", "stops"),
    [(early, small_data, []), (lambda: StopsAt(10), unvalidated, [10])],
    ids=["after an epoch", "inside an epoch"],
)
def test_a_training_that_stopped_early_does_not_train_on_when_it_is_resumed(
    stops_early, data, stops, tmp_path
):
    def make():
        return plan(model=one_layer, data=data, callbacks=lambda: [stops_early()], epochs=9)

    watcher = Watcher(None if stops else tmp_path)
    ended = [train(make(), watcher), trainings.resumed(make, tmp_path, stops)]
    assert len(watcher.kept) <= 1, "the last state is kept before on_train_end changes it"
    assert equal(*(weights(loop._plan.model) for loop in ended))
    whole, resumed = (loop.history for loop in ended)
    assert whole.history == resumed.history
    assert whole.epoch == resumed.epoch == [0, 1]


def wider():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(17), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(
    ("original", "changed", "callbacks", "mismatches"),
    [
        (
            mlp,
            wider,
            [],
            (
                *("model variable 0", "float32[8, 17], and float32[8, 16] in it"),
                *("is in the checkpoint only", "undo the change"),
            ),
        ),
        (one_layer, one_layer, [keras.callbacks.EarlyStopping()], ["EarlyStopping"]),
    ],
    ids=["model", "callbacks"],
)
def test_a_changed_training_is_refused_with_every_mismatch_named_and_changes_nothing(
    original, changed, callbacks, mismatches, tmp_path
):
    sweeper.fit(original(), unvalidated(), epochs=1, checkpoints=tmp_path)
    model = changed()
    drawn = weights(model)
    with pytest.raises(RestoreError) as raised:
        sweeper.fit(model, unvalidated(), epochs=2, checkpoints=tmp_path, callbacks=callbacks)
    assert [part for part in mismatches if part not in str(raised.value)] == []
    assert equal(weights(model)[: len(drawn)], drawn)
