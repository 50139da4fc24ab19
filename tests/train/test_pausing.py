"""A training that pauses at rungs, and goes on in fresh objects each time, is the whole training."""

from dataclasses import replace

import exactness_models as models
import keras
import pytest
from exactness_models import compiled
from keras import layers, optimizers
from trainings import Watcher, equal, plan, weights

from sweeper.checkpoint.reading import load_newest
from sweeper.errors import ObjectiveError
from sweeper.records.results import EpochRecord
from sweeper.train.loop.logs import check_rung, check_rungs
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Paused

EPOCHS = 4


def stopping():
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
    ]


def swapping():
    return [keras.callbacks.SwapEMAWeights()]


def averaged_at_the_end():
    return compiled(optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8), layers.Dropout(0.3))


whole = pytest.mark.whole
CASES = [
    pytest.param(lambda: compiled(optimizers.SGD(0.05, 0.9)), stopping, id="SGD-stopping"),
    pytest.param(models.accumulating, tuple, id="Adam-accumulating", marks=whole),
    pytest.param(averaged_at_the_end, swapping, id="Adam-averaged", marks=whole),
]


def planned(model, callbacks):
    return plan(
        model=model, data=models.data, callbacks=callbacks, epochs=EPOCHS, objective="val_loss"
    )


@pytest.mark.whole
@pytest.mark.parametrize(("model", "callbacks"), CASES)
def test_a_promoted_training_is_the_whole_one(model, callbacks, tmp_path):
    watcher = Watcher(tmp_path / "whole")
    loop = TrainingLoop(planned(model, callbacks), watcher)
    loop.run()
    given = planned(model, callbacks)
    rungs = (1, 2, None)
    for rung in rungs:
        directory = tmp_path / "paused"
        loaded = load_newest([directory], print) if directory.exists() else None
        again = Watcher(directory)
        given = replace(planned(model, callbacks), pause_after=rung)
        going = TrainingLoop(given, again)
        if rung is None:
            going.run(loaded)
            break
        with pytest.raises(Paused):
            going.run(loaded)
        assert going.position.epoch == rung, "the checkpoint is of the rung's epoch"
        # Who comes to a rung twice, because the news of it was lost, trains nothing.
        with pytest.raises(Paused):
            TrainingLoop(replace(planned(model, callbacks), pause_after=rung), Watcher()).run(
                load_newest([directory], print)
            )
    assert again.digest == watcher.digest
    assert equal(weights(given.model), weights(loop._plan.model))
    assert going.epochs == loop.epochs


def test_a_rung_whose_epoch_reports_no_objective_is_refused_before_any_step():
    data = models.data(validation_freq=2)
    check_rungs((2, 4), "val_loss", data)
    check_rungs((1, 3), "loss", data)
    with pytest.raises(ObjectiveError, match=r"'val_loss' after 1 and 3 epochs.*validation_freq=2"):
        check_rungs((1, 3, 4), "val_loss", data)
    with pytest.raises(
        ObjectiveError, match="after epoch 3, but that epoch reported only 'loss'; report it"
    ):
        check_rung("score", EpochRecord(2, {"loss": 0.5}))
