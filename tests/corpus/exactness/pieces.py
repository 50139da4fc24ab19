"""What most studies of the corpus share: a dozen units, forty samples, five batches an epoch."""

import keras
import numpy as np
import tensorflow as tf

from sweeper import Data

FEATURES = 6
CLASSES = 3
SAMPLES = 40
BATCH = 8


def samples(seed=3, count=SAMPLES):
    """Random floats, and labels that follow from them."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(count, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES] + 0.5 * x[:, CLASSES:], axis=1)


def load_data(trial):
    return Data(train=samples(), batch_size=BATCH)


def load_validated(trial):
    return Data(train=samples(), validation=samples(4, 16), batch_size=BATCH)


def pairs(**options):
    """The samples one by one, as a dataset."""
    return tf.data.Dataset.from_tensor_slices(samples(**options))


def batches(x, y):
    for start in range(0, len(x), BATCH):
        yield x[start : start + BATCH], y[start : start + BATCH]


def layers_of(*after, first=None, before=()):
    """Layers of the usual model; ``after`` follow the ``first`` dense one, and ``before`` precede it."""
    return [
        keras.Input((FEATURES,)),
        *before,
        first or keras.layers.Dense(8, activation="tanh"),
        *after,
        keras.layers.Dropout(0.25),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]


def compiled(model, optimizer=None, loss="sparse_categorical_crossentropy", **options):
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.1, 0.9), loss=loss, **options)
    return model


def stacked(*after, first=None, before=(), optimizer=None, **options):
    """The usual model with further layers, as `layers_of` has them."""
    model = keras.Sequential(layers_of(*after, first=first, before=before))
    return compiled(model, optimizer, **options)


def build_model(trial):
    return stacked(metrics=["accuracy"])


def build_eager(trial):
    return stacked(run_eagerly=True)


def crossentropy(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


class Lowers(keras.callbacks.Callback):
    """Lowers the learning rate by what `use` makes of a thing, and of the loss of each batch."""

    def __init__(self, thing, use):
        super().__init__()
        self.thing = thing
        self.use = use

    def on_train_batch_end(self, batch, logs=None):
        used = float(self.use(self.thing, logs["loss"]))
        self.model.optimizer.learning_rate = 0.1 / (1.0 + abs(used))


def lowering(make, use):
    """Return the factory of a `Lowers`; each trial makes a thing of its own."""
    return lambda trial: [Lowers(make(), use)]


class Wrapping(keras.Model):
    """A model around the usual one."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential(layers_of())

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss
