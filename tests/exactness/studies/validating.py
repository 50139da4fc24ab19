"""Validation: datasets that repeat, of unknown length, with state of their own; vectors as metrics."""

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, load_validated, pairs, samples, stacked
from registry import either, identical, study, study_data

from sweeper import Data

study(
    "validation-shuffled-repeats",
    "a validation dataset that is shuffled, with a seed, and repeats",
    identical(),
    data=lambda trial: Data(
        train=samples(),
        batch_size=BATCH,
        validation=pairs(seed=4, count=48).shuffle(48, seed=2).batch(BATCH).repeat(),
        validation_steps=3,
    ),
    objective="val_loss",
)


@study_data(
    "validation-from-generator",
    "an endless from_generator for validation, whose generator's numbers go on",
    either("generator"),
    objective="val_loss",
)
def validated_by_generator(trial):
    rng = np.random.default_rng(3)
    x, y = samples(4, 48)

    def drawn():
        while True:
            chosen = rng.integers(len(x), size=BATCH)
            yield x[chosen], y[chosen]

    signature = (tf.TensorSpec((None, x.shape[1]), tf.float32), tf.TensorSpec((None,), tf.int64))
    endless = tf.data.Dataset.from_generator(drawn, output_signature=signature)
    return Data(train=samples(), batch_size=BATCH, validation=endless, validation_steps=2)


class KeepsRunning(keras.metrics.Metric):
    """Never resets its total, and counts resets in Python."""

    def __init__(self):
        super().__init__(name="running")
        self.total = self.add_weight(initializer="zeros", name="total")
        self.resets = 0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_mean(y_pred[:, 0]))

    def reset_state(self):
        self.resets += 1

    def result(self):
        return self.total / (1.0 + self.resets)


study(
    "metric-counts-its-resets",
    "a metric that is never reset and counts in Python how often it should have been, eagerly",
    identical(),
    model=lambda trial: stacked(metrics=[KeepsRunning()], run_eagerly=True),
    data=load_validated,
)


class ValidatesItself(keras.callbacks.Callback):
    """Draws a random part of held-out data at every epoch's end, and keeps the best."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y
        self.best = None

    def on_epoch_end(self, epoch, logs=None):
        chosen = np.random.choice(len(self.x), 8, replace=False)
        loss = self.model.test_on_batch(self.x[chosen], self.y[chosen], return_dict=True)["loss"]
        if self.best is None or loss < self.best:
            self.best = float(loss)
        else:
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.7


study(
    "callback-tests-on-random-part",
    "a callback that calls test_on_batch on a random part, at every epoch's end",
    identical(),
    callbacks=lambda trial: [ValidatesItself(*samples(4, 32))],
)
