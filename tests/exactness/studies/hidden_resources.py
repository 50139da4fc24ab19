"""TensorFlow's resources, tables and queues, and a random kernel in a loss."""

import keras
import tensorflow as tf
from pieces import stacked
from registry import identical, refused, study_callback, study_model


@study_callback(
    "mutable-hash-table",
    "a MutableHashTable of TensorFlow's that a callback writes into",
    refused("table", "a mutable lookup table", "tf.Variable"),
)
class TableInCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.0)

    def on_train_batch_begin(self, batch, logs=None):
        key = tf.constant(["batches"])
        self.table.insert(key, self.table.lookup(key) + 1.0)
        self.model.optimizer.learning_rate = 0.1 / float(self.table.lookup(key)[0]) ** 0.5


@study_callback(
    "tensorflow-queue",
    "a tf.queue.FIFOQueue that a callback fills and empties",
    refused("queue", "collections.deque"),
)
class QueueInCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.queue = tf.queue.FIFOQueue(4, [tf.float32])

    def on_train_batch_end(self, batch, logs=None):
        if int(self.queue.size()) == 4:
            old = float(self.queue.dequeue())
            self.model.optimizer.learning_rate = 0.1 * logs["loss"] / (old + logs["loss"])
        self.queue.enqueue(tf.constant(logs["loss"], tf.float32))


@study_model("random-kernel-in-loss", "tf.random.uniform in a loss that is traced", identical())
def build_random_in_loss(trial):
    def noisy(y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        return loss * tf.random.uniform(tf.shape(loss), 0.5, 1.0)

    return stacked(loss=noisy)
