"""Steps of one's own: GANs, teachers, Reptile, helpers that are traced, models that count."""

import keras
import numpy as np
import tensorflow as tf
from pieces import compiled, layers_of
from registry import identical, study


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


class Teacher(Wrapping):
    """A mean teacher: an average of the weights in a second network."""

    def __init__(self):
        super().__init__()
        self.teacher = keras.Sequential(layers_of())
        self.teacher.trainable = False

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            gap = tf.reduce_mean((predicted - self.teacher(x, training=True)) ** 2)
            loss = self.compute_loss(x, y, predicted) + gap
        variables = self.inner.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for mean, weight in zip(self.teacher.weights, self.inner.weights, strict=False):
            if mean.dtype == "float32":
                mean.assign(0.9 * mean + 0.1 * weight)
        return {"loss": loss}


study(
    "mean-teacher",
    "a teacher network that follows the student, traced",
    identical(),
    model=lambda trial: compiled(Teacher()),
)


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
    model=lambda trial: compiled(
        keras.Sequential(layers_of()), Clipped(learning_rate=0.1), run_eagerly=True
    ),
)
