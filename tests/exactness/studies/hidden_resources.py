"""TensorFlow's resources: tables, queues, iterators of datasets, and variables as seeds."""

import keras
import numpy as np
import tensorflow as tf
from pieces import compiled, layers_of
from registry import identical, refused, study


class TableInCallback(keras.callbacks.Callback):
    """Keeps counts in a table of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)

    def on_train_batch_begin(self, batch, logs=None):
        key = tf.constant(["batches"])
        self.table.insert(key, self.table.lookup(key) + 1.0)
        self.model.optimizer.learning_rate = 0.1 / float(self.table.lookup(key)[0]) ** 0.5


study(
    "mutable-hash-table",
    "a MutableHashTable of TensorFlow's that a callback writes into",
    refused("table", "a mutable lookup table", "tf.Variable"),
    callbacks=lambda trial: [TableInCallback()],
)


class QueueInCallback(keras.callbacks.Callback):
    """Keeps the last losses in a queue of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.queue = tf.queue.FIFOQueue(4, [tf.float32])

    def on_train_batch_end(self, batch, logs=None):
        if int(self.queue.size()) == 4:
            old = float(self.queue.dequeue())
            self.model.optimizer.learning_rate = 0.1 * logs["loss"] / (old + logs["loss"])
        self.queue.enqueue(tf.constant(logs["loss"], tf.float32))


study(
    "tensorflow-queue",
    "a tf.queue.FIFOQueue that a callback fills and empties",
    refused("queue", "collections.deque"),
    callbacks=lambda trial: [QueueInCallback()],
)


class Iterates(keras.callbacks.Callback):
    """Walks through a dataset of its own, a batch at a time."""

    def __init__(self):
        super().__init__()
        numbers = np.linspace(0.02, 0.1, 12).astype("float32")
        self.dataset = tf.data.Dataset.from_tensor_slices(numbers).shuffle(12, seed=1).repeat()

    def on_train_begin(self, logs=None):
        self.batches = iter(self.dataset)

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = float(next(self.batches))


study(
    "dataset-iterator-in-callback",
    "iter(dataset), shuffled, in a callback",
    refused("batches", "an iterator over a tf.data.Dataset", "make a new iterator"),
    callbacks=lambda trial: [Iterates()],
)


def build_stateless(trial):
    step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def noisy(x):
        step.assign_add(1)
        seed = tf.stack([tf.constant(3, tf.int64), step])
        return x + tf.random.stateless_normal(tf.shape(x), seed, stddev=0.2)

    layers = layers_of()
    layers.insert(2, keras.layers.Lambda(noisy))
    return compiled(keras.Sequential(layers))


study(
    "stateless-op-with-closure-step",
    "a stateless random op whose seed is a tf.Variable in a Lambda layer's closure",
    identical(),
    model=build_stateless,
)


def build_random_in_loss(trial):
    def noisy(y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        return loss * tf.random.uniform(tf.shape(loss), 0.5, 1.0)

    return compiled(keras.Sequential(layers_of()), loss=noisy)


study(
    "random-kernel-in-loss",
    "tf.random.uniform in a loss that is traced",
    identical(),
    model=build_random_in_loss,
)
