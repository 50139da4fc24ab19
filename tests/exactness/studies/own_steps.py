"""Steps of one's own: GANs, teachers, Reptile, helpers that are traced, models that count."""

from __future__ import annotations

import collections

import keras
import numpy as np
import tensorflow as tf
from pieces import FEATURES, compiled, layers_of
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


class GAN(keras.Model):
    """Two networks and two optimizers, a counter, and one more step of one every third time."""

    def __init__(self):
        super().__init__()
        dense = keras.layers.Dense
        self.generator = keras.Sequential([keras.Input((3,)), dense(6, "tanh"), dense(FEATURES)])
        self.critic = keras.Sequential([keras.Input((FEATURES,)), dense(6, "tanh"), dense(1)])
        self.second = keras.optimizers.Adam(0.02)
        self.seeds = keras.random.SeedGenerator(4)
        self.turn = 0

    def call(self, x, training=False):
        return self.critic(x)

    def build(self, shape):
        self.second.build(self.generator.trainable_variables)
        self.built = True

    def train_step(self, data):
        x, _ = data
        self.turn += 1
        with tf.GradientTape(persistent=True) as tape:
            made = self.generator(keras.random.normal((8, 3), seed=self.seeds))
            real, fake = self.critic(x), self.critic(made)
            critic_loss = tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(
                tf.nn.softplus(fake)
            )
            maker_loss = tf.reduce_mean(tf.nn.softplus(-fake))
        critic = self.critic.trainable_variables
        self.optimizer.apply(tape.gradient(critic_loss, critic), critic)
        if self.turn % 3 == 0:
            maker = self.generator.trainable_variables
            self.second.apply(tape.gradient(maker_loss, maker), maker)
        return {"loss": critic_loss, "maker": maker_loss}


study(
    "gan-with-turns",
    "a GAN that counts its turns in Python, with two optimizers, eagerly",
    identical(),
    model=lambda trial: compiled(GAN(), keras.optimizers.Adam(0.02), loss=None, run_eagerly=True),
)


class Replays(Wrapping):
    """Mixes batches of a replay buffer in, as reinforcement learning scripts do."""

    def __init__(self):
        super().__init__()
        self.buffer = collections.deque(maxlen=6)
        self.rng = np.random.default_rng(5)

    def train_step(self, data):
        x, y = data
        self.buffer.append((x.numpy(), y.numpy()))
        old_x, old_y = self.buffer[int(self.rng.integers(len(self.buffer)))]
        return {"loss": self.step(tf.concat([x, old_x], 0), tf.concat([y, tf.constant(old_y)], 0))}


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


class Reptile(Wrapping):
    """Reptile: copies the weights, takes inner steps, and moves a little towards them."""

    def __init__(self):
        super().__init__()
        self.meta_step = 1.0
        self.tasks = np.random.RandomState(2)

    def train_step(self, data):
        x, y = data
        before = [tf.identity(v.value) for v in self.trainable_variables]
        order = tf.constant(self.tasks.permutation(FEATURES))
        for _ in range(2):
            loss = self.step(tf.gather(x, order, axis=1), y)
        self.meta_step *= 0.95
        for variable, old in zip(self.trainable_variables, before, strict=True):
            variable.assign(old + self.meta_step * (variable.value - old))
        return {"loss": loss}


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
