"""The epoch whose weights a model has at the end, and what it measures then, are the same after a resume."""

import exactness_models as models
import keras
import pytest
import tensorflow as tf
from trainings import Watcher, one_layer, plan, train

from sweeper import Data
from sweeper.checkpoint.reading import load_newest


class Halved(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        del logs
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


def restoring():
    return [
        keras.callbacks.EarlyStopping("val_loss", mode="max", patience=9, restore_best_weights=True)
    ]


@pytest.mark.parametrize(
    ("callbacks", "delivered"),
    [
        pytest.param(tuple, 2, marks=pytest.mark.whole),
        (restoring, 0),
        pytest.param(lambda: [Halved()], None, marks=pytest.mark.whole),
    ],
    ids=["plain", "restored", "changed"],
)
def test_resumed_after_the_last_checkpoint(callbacks, delivered, tmp_path):
    def trained(watcher):
        planned = plan(data=models.data, callbacks=callbacks, objective="val_loss")
        return train(planned, watcher, load_newest([tmp_path], pytest.fail))

    whole = trained(Watcher(tmp_path))
    resumed = trained(Watcher())
    ends = [(loop.delivered_epoch(("val_loss",)), loop.measure()) for loop in (whole, resumed)]
    assert ends[0] == ends[1]
    assert ends[0][0] == delivered
    val_loss = whole.epochs[-1].metrics["val_loss"]
    assert (whole.measure()["val_loss"] == val_loss) == (delivered == 2)


def test_weights_that_the_end_changed_are_measured_on_a_dataset_again():
    def data():
        arrays = models.data()
        validation = tf.data.Dataset.from_tensor_slices(arrays.validation).batch(8)
        return Data(train=arrays.train, validation=validation)

    planned = plan(data=data, callbacks=lambda: [Halved()], epochs=2)
    ended = train(planned, Watcher())
    assert ended.measure()["val_loss"] not in (None, ended.epochs[-1].metrics["val_loss"])


def test_weights_are_digested_only_where_an_objective_asks_for_it():
    for objective in (None, "val_loss"):
        watcher = Watcher()
        train(plan(model=one_layer, objective=objective), watcher)
        assert [*map(bool, watcher.last.state["history"]["weights"])] == [bool(objective)] * 3
