"""A training that goes on past its end equals one that was as long from its beginning, bit for bit.

Over five optimizers, with early stopping, averages and accumulated gradients: what ends differently
than it trained (weights put back, averages written over them) goes on from what it was before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import exactness_models as models
import keras
import pytest
from exactness_models import compiled
from keras import callbacks, layers, optimizers
from trainings import Watcher, equal, plan, train, weights

from sweeper import Data
from sweeper.checkpoint.reading import load_newest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.train.state import callbacks as state_callbacks

FIRST, WHOLE = 2, 4


def unvalidated():
    return models.data(validation=None, validation_batch_size=None)


@dataclass(frozen=True)
class Case:
    """One combination; ``ends_changed`` where the end of training changes the model once more."""

    name: str
    model: Callable[[], keras.Model]
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple
    ends_changed: bool = False
    data: Callable[[], Data] = unvalidated

    def plan(self, epochs):
        return plan(model=self.model, data=self.data, callbacks=self.callbacks, epochs=epochs)


def early_stopping():
    """Puts the weights of the first epoch back, whatever the losses are."""
    worst_first = {"monitor": "loss", "mode": "max", "patience": 9, "restore_best_weights": True}
    return [callbacks.EarlyStopping(**worst_first), callbacks.ReduceLROnPlateau("loss", 0.5, 1)]


CASES = (
    Case(
        "momentum-early-stopping",
        lambda: compiled(optimizers.SGD(0.05, 0.9, nesterov=True), layers.Dropout(0.3)),
        early_stopping,
        ends_changed=True,
    ),
    Case(
        "centred-noise",
        lambda: compiled(optimizers.RMSprop(0.01, centered=True), layers.GaussianNoise(0.1)),
    ),
    Case(
        "amsgrad-averages",
        lambda: compiled(
            optimizers.Adam(0.02, amsgrad=True, use_ema=True, ema_momentum=0.8),
            layers.BatchNormalization(),
        ),
        ends_changed=True,
    ),
    Case(
        "clipped-accumulating",
        lambda: compiled(
            optimizers.AdamW(0.02, clipnorm=0.5, gradient_accumulation_steps=3),
            layers.Dropout(0.2),
        ),
    ),
    Case(
        "swapped-averages",
        lambda: compiled(
            optimizers.Nadam(0.02, use_ema=True, ema_momentum=0.8), layers.Dropout(0.2)
        ),
        lambda: [callbacks.SwapEMAWeights(swap_on_epoch=False)],
        ends_changed=True,
        data=models.data,  # averages are swapped for a validation
    ),
    Case(
        "averages-left-in-the-model",
        lambda: compiled(
            optimizers.Nadam(0.02, use_ema=True, ema_momentum=0.8), layers.Dropout(0.2)
        ),
        lambda: [
            callbacks.SwapEMAWeights(swap_on_epoch=True),
            callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9.0),
        ],
        ends_changed=True,
        data=models.data,
    ),
)


BY_DEFAULT = ("momentum-early-stopping",)
"""What ends other than it trained, by a callback; another is with the control below."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in BY_DEFAULT else pytest.mark.whole)
        for case in CASES
    ],
)
def test_a_training_that_goes_on_past_its_end_equals_one_as_long_from_its_beginning(case, tmp_path):
    whole = Watcher(tmp_path / "whole")
    expected = train(case.plan(WHOLE), whole)

    first = Watcher(tmp_path / "first")
    ended = train(case.plan(FIRST), first)
    assert first.digest
    loaded = load_newest([tmp_path / "first"], pytest.fail)
    assert loaded is not None
    assert loaded.state["position"]["epoch"] == FIRST

    on = Watcher(tmp_path / "on")
    extended = train(case.plan(WHOLE), on, loaded)
    assert on.digest == whole.digest
    assert extended.epochs == expected.epochs
    assert equal(weights(extended._plan.model), weights(expected._plan.model))

    # Control: from the model as training left it, which is not where training stood.
    after = CheckpointStore(tmp_path / "after").commit(ended._snapshot())
    assert (after.digest != first.digest) == case.ends_changed
    if case.ends_changed:
        left = load_newest([tmp_path / "after"], pytest.fail)
        other = Watcher(tmp_path / "other")
        train(case.plan(WHOLE), other, left)
        assert other.digest != whole.digest


def swapped(tmp_path):
    """Return the case with averages left in the model, how it ends, and its last checkpoint."""
    (case,) = (each for each in CASES if each.name == "averages-left-in-the-model")
    ended = train(case.plan(FIRST), Watcher(tmp_path / "first"))
    loaded = load_newest([tmp_path / "first"], pytest.fail)
    assert loaded is not None
    return case, loaded, ended


@pytest.mark.whole
def test_averages_left_in_the_model_end_it_after_a_resume_from_its_last_checkpoint(tmp_path):
    case, loaded, ended = swapped(tmp_path)
    resumed = train(case.plan(FIRST), Watcher(), loaded)
    assert equal(weights(resumed._plan.model), weights(ended._plan.model))


def test_without_the_weights_that_the_callback_overwrites_more_epochs_are_others(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as as_in_keras:
        as_in_keras.setattr(state_callbacks, "_NEVER", FIRST)
        case, loaded, _ = swapped(tmp_path)
    whole, on = Watcher(tmp_path / "whole"), Watcher(tmp_path / "on")
    train(case.plan(WHOLE), whole)
    train(case.plan(WHOLE), on, loaded)
    assert on.digest != whole.digest
