"""The epoch whose weights a model has at the end, and what it measures then, are the same after a resume."""

import exactness_models as models
import keras
import pytest
import tensorflow as tf
from exactness_models import compiled
from keras import optimizers
from trainings import Watcher, plan, train

from sweeper import Data
from sweeper.checkpoint.reading import load_newest

EPOCHS = 5
NAMES = ("val_loss",)


class Halved(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        del logs
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])


def restoring():
    return [
        keras.callbacks.EarlyStopping("val_loss", mode="max", patience=9, restore_best_weights=True)
    ]


def halving():
    return [Halved()]


@pytest.mark.parametrize(
    ("callbacks", "delivered"),
    [
        pytest.param(tuple, EPOCHS - 1, marks=pytest.mark.whole),
        (restoring, 0),
        pytest.param(halving, None, marks=pytest.mark.whole),
    ],
    ids=["plain", "restored", "changed"],
)
def test_resumed_after_the_last_checkpoint(callbacks, delivered, tmp_path):
    def trained(watcher, *, resumed):
        planned = plan(
            model=lambda: compiled(optimizers.SGD(0.05, 0.9)),
            data=models.data,
            callbacks=callbacks,
            epochs=EPOCHS,
            objective="val_loss",
        )
        return train(planned, watcher, load_newest([tmp_path], print) if resumed else None)

    whole = trained(Watcher(tmp_path), resumed=False)
    again = trained(Watcher(), resumed=True)

    assert whole.delivered_epoch(NAMES) == again.delivered_epoch(NAMES) == delivered
    assert whole.measure() == again.measure()
    own = whole.epochs[-1].metrics["val_loss"]
    assert (whole.measure()["val_loss"] == own) == (delivered == EPOCHS - 1)


def test_weights_that_the_end_changed_are_measured_on_a_dataset_again():
    def data():
        given = models.data()
        validation = tf.data.Dataset.from_tensor_slices(given.validation).batch(8)
        return Data(train=given.train, validation=validation)

    planned = plan(
        model=lambda: compiled(optimizers.SGD(0.05)), data=data, callbacks=halving, epochs=2
    )
    ended = train(planned, Watcher())
    assert ended.measure()["val_loss"] not in (None, ended.epochs[-1].metrics["val_loss"])


def test_weights_are_digested_only_where_an_objective_asks_for_it():
    def digests(objective):
        planned = plan(
            data=models.data, model=lambda: compiled(optimizers.SGD(0.05)), objective=objective
        )
        return {bool(digest) for digest in train(planned, Watcher())._record.weights}

    assert digests(None) == {False}
    assert digests("val_loss") == {True}
