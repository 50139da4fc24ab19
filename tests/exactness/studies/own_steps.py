"""Optimizers, steps and layers of one's own that count or keep a tensor."""

import keras
import numpy as np
import tensorflow as tf
from pieces import CLASSES, FEATURES, Wrapping, compiled, stacked
from registry import either, identical, study, study_model


class Clipped(keras.optimizers.SGD):
    """An optimizer of one's own with attributes in Python: clips by what it has seen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.norms = []

    def apply(self, grads, trainable_variables=None):
        norm = float(tf.linalg.global_norm(grads))
        self.norms.append(norm)
        limit = float(np.median(self.norms))
        return super().apply([g * min(1.0, limit / norm) for g in grads], trainable_variables)


study(
    "optimizer-with-python-list",
    "an optimizer that clips by the median of a Python list of norms, eagerly",
    identical(),
    model=lambda trial: stacked(optimizer=Clipped(learning_rate=0.1), run_eagerly=True),
)


@study_model(
    "python-counter-in-traced-step",
    "a Python counter in a traced train_step, which counts tracings",
    identical(),
)
class TracedCounter(Wrapping):
    def __init__(self):
        super().__init__()
        self.traced = 0

    def train_step(self, data):
        self.traced += 1
        x, y = data
        return {"loss": self.step(x * (1 + 0.1 * self.traced), y)}


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


@study_model(
    "power-iteration-tensor",
    "a layer that keeps a tensor in a plain attribute and replaces it, eagerly",
    either("vector"),
)
def build_spectral(trial):
    first = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(8, "tanh")])
    head = keras.layers.Dense(CLASSES, "softmax")
    return compiled(keras.Sequential([first, Spectral(), head]), run_eagerly=True)
