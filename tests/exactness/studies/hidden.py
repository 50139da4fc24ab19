"""TensorFlow's hidden state: generators, seeds, late tracing, tables and queues."""

import keras
import tensorflow as tf
from pieces import stacked
from registry import either, identical, refused, study_callback


@study_callback(
    "function-closure-generator",
    "a tf.random.Generator closed over by a tf.function, called by a callback",
    identical(),
)
def generator_callbacks(trial):
    generator = tf.random.Generator.from_seed(4)

    @tf.function
    def draw():
        return generator.uniform([], 0.02, 0.1)

    class Draws(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = float(draw())

    return [Draws()]


class GlobalGenerator(keras.callbacks.Callback):
    """Draws from TensorFlow's global generator."""

    def on_train_batch_begin(self, batch, logs=None):
        generator = tf.random.get_global_generator()
        self.model.optimizer.learning_rate = float(generator.uniform([], 0.02, 0.1))


@study_callback(
    "global-generator", "tf.random.get_global_generator() in a callback", either("generator")
)
def with_global_generator(trial):
    tf.random.set_global_generator(tf.random.Generator.from_seed(6))
    return [GlobalGenerator()]


@study_callback(
    "late-traced-function",
    "a tf.function traced in training, with a Python number in it that goes on changing",
    either("factor"),
)
class LateTraced(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

        @tf.function
        def lowered(rate):
            return rate * self.factor

        self.lowered = lowered

    def on_train_batch_end(self, batch, logs=None):
        self.factor *= 0.98
        self.model.optimizer.learning_rate = float(self.lowered(tf.constant(0.1)))


@study_callback(
    "tf-set-seed-mid-epoch",
    "tf.random.set_seed in the middle of an epoch, and seeded eager ops around it",
    identical(),
)
class ReseedsTensorFlow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            tf.random.set_seed(17)
        self.model.optimizer.learning_rate = 0.02 + float(tf.random.uniform([], 0, 0.1, seed=2))


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


def build_global_noise(trial):
    noise = keras.layers.Lambda(lambda x: x + keras.random.normal((1, 8), stddev=0.2))
    return stacked(noise)


@study_callback(
    "clear-session-in-callback",
    "clear_session() at every epoch's end, and keras.random without a seed in a layer",
    either("clear_session", by=2),
    model=build_global_noise,
)
class Clears(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        keras.backend.clear_session()


@study_callback(
    "set-random-seed-beside-keras-random",
    "set_random_seed in a callback, beside a layer that draws from keras.random without a seed",
    either("seed", by=2),
    model=build_global_noise,
)
class Reseeds(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        keras.utils.set_random_seed(100 + epoch)
