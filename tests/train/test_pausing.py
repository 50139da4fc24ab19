"""A training that pauses at rungs, and goes on in fresh objects each time, is the whole training."""

from dataclasses import replace

import exactness_models as models
import keras
import pytest
from exactness_models import compiled
from keras import layers, optimizers
from trainings import Watcher, equal, plan, train, weights

from sweeper.checkpoint.reading import load_newest


def stopping():
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
    ]


def swapping():
    return [keras.callbacks.SwapEMAWeights()]


def averaged_at_the_end():
    return compiled(optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8), layers.Dropout(0.3))


def with_momentum():
    return compiled(optimizers.SGD(0.05, 0.9))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "callbacks"), [(with_momentum, stopping), (averaged_at_the_end, swapping)]
)
def test_a_promoted_training_is_the_whole_one(model, callbacks, tmp_path):
    def planned(rung):
        options = {"data": models.data, "epochs": 4, "objective": "val_loss"}
        return replace(plan(model=model, callbacks=callbacks, **options), pause_after=rung)

    whole = Watcher(tmp_path / "whole")
    expected = train(planned(None), whole)
    # Who comes to a rung twice, because the news of it was lost, trains nothing.
    for rung, epochs in ((1, 1), (1, 0), (2, 1), (None, 2)):
        watcher = Watcher(tmp_path / "paused")
        loop = train(planned(rung), watcher, load_newest([tmp_path / "paused"], pytest.fail))
        assert loop.position.epoch == rung or rung is None
        assert len(watcher.epochs) == epochs
    assert watcher.digest == whole.digest
    assert equal(*(weights(training._plan.model) for training in (loop, expected)))
    assert loop.epochs == expected.epochs
