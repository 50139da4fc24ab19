"""Steps of one's own, traced or beside callbacks: added losses, negatives, counters, undo."""

import keras
import tensorflow as tf
from pieces import CLASSES, FEATURES, compiled, layers_of
from registry import either, identical, study


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


class AddsLoss(keras.layers.Layer):
    """Adds a loss whose weight is a variable that a callback raises."""

    def __init__(self):
        super().__init__()
        self.strength = self.add_weight(initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(self.strength * keras.ops.mean(x**2))
        return x


class Raises(keras.callbacks.Callback):
    """Raises the added loss's weight."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.layers[2].strength.assign_add(0.05)


def build_added(trial):
    layers = layers_of()
    layers.insert(3, AddsLoss())
    return compiled(keras.Sequential(layers))


study(
    "add-loss-raised-by-callback",
    "model.add_loss with a weight that a callback raises",
    identical(),
    model=build_added,
    callbacks=lambda trial: [Raises()],
)


class TracedCounter(Wrapping):
    """Counts in Python inside of a traced step: the count stays what it was when traced."""

    def __init__(self):
        super().__init__()
        self.traced = 0

    def train_step(self, data):
        self.traced += 1
        x, y = data
        return {"loss": self.step(x * (1 + 0.1 * self.traced), y)}


study(
    "python-counter-in-traced-step",
    "a Python counter in a traced train_step, which counts tracings",
    identical(),
    model=lambda trial: compiled(TracedCounter()),
)


class Spectral(keras.layers.Layer):
    """Power iteration whose vector is a plain tensor attribute, eagerly."""

    def __init__(self):
        super().__init__()
        self.vector = tf.ones([8, 1])

    def call(self, x):
        if tf.inside_function():
            return x
        self.vector = tf.linalg.l2_normalize(
            tf.matmul(x, tf.matmul(x, self.vector), transpose_a=True) + 0.1 * self.vector
        )
        return x / (1 + 0.1 * tf.reduce_sum(self.vector))


def build_spectral(trial):
    inputs = keras.Input((FEATURES,))
    x = keras.layers.Dense(8, "tanh")(inputs)
    model = keras.Model(inputs, x)
    head = keras.layers.Dense(CLASSES, "softmax")
    whole = keras.Sequential([model, Spectral(), head])
    return compiled(whole, run_eagerly=True)


study(
    "power-iteration-tensor",
    "a layer that keeps a tensor in a plain attribute and replaces it, eagerly",
    either("vector"),
    model=build_spectral,
)
