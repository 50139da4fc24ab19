"""Objects made once, at the top of a file, as most published scripts make them.

A process a trial makes each of them the trial's own: data sets that are shuffled anew, generators,
metrics, variables, losses and schedules with state, preprocessing layers, a frozen network.
"""

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, CLASSES, FEATURES, SAMPLES, pairs, samples
from registry import identical, study, study_data, study_model

from sweeper import Data

X, Y = samples()

SHUFFLED = pairs().shuffle(SAMPLES).batch(BATCH)
NOISED = SHUFFLED.map(lambda x, y: (x + keras.random.normal(tf.shape(x), stddev=0.1), y))
study(
    "dataset-at-top",
    "a dataset of the module, shuffled without a seed, with Keras's global generator in its map",
    identical(),
    data=lambda trial: Data(train=NOISED.prefetch(2)),
)


RNG = np.random.default_rng(0)


@study_data(
    "generator-at-top-in-data-factory",
    "a generator of the module that the data factory draws from",
    identical(),
    objective="val_loss",
    steps=4,
)
def drawn_data(trial):
    x = RNG.normal(size=(SAMPLES, FEATURES)).astype("float32")
    return Data(train=(x, Y), validation_split=0.2, batch_size=BATCH)


class Reordered(keras.utils.PyDataset):
    """Batches in an order that its own generator draws between epochs."""

    def __init__(self):
        super().__init__()
        self.numbers = np.random.default_rng(5)
        self.order = np.arange(SAMPLES)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.numbers.shuffle(self.order)


REORDERED = Reordered()
study(
    "pydataset-at-top",
    "a PyDataset of the module that shuffles by a generator of its own",
    identical(),
    data=lambda trial: Data(train=REORDERED, shuffle=False),
)

LOSS_TRACKER = keras.metrics.Mean(name="loss")
STEPS = tf.Variable(0, dtype=tf.int64, trainable=False)
TEMPERATURE = tf.Variable(1.0)
NOISE = keras.random.SeedGenerator(7)


class Tracked(keras.Model):
    """Uses metrics, variables and seeds of the module in its step."""

    def train_step(self, data):
        x, y = data
        STEPS.assign_add(1)
        x = x + keras.random.normal(tf.shape(x), stddev=0.1, seed=NOISE)
        with tf.GradientTape() as tape:
            scores = self(x, training=True) / (TEMPERATURE + 0.01 * tf.cast(STEPS, tf.float32))
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, scores, True))
        gradients = tape.gradient(loss, [*self.trainable_variables, TEMPERATURE])
        TEMPERATURE.assign_sub(0.05 * gradients[-1])
        self.optimizer.apply_gradients(zip(gradients[:-1], self.trainable_variables, strict=True))
        LOSS_TRACKER.update_state(loss)
        return {"loss": LOSS_TRACKER.result()}

    @property
    def metrics(self):
        return [LOSS_TRACKER]


@study_model(
    "step-with-objects-at-top",
    "a train_step with a metric, a counter, a trained variable and a seed generator of the module",
    identical(),
)
def tracked_model(trial):
    inputs = keras.Input((FEATURES,))
    model = Tracked(inputs, keras.layers.Dense(CLASSES)(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.1, 0.9))
    return model
