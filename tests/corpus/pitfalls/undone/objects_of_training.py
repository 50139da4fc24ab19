"""Metrics, a loss, a schedule and a generator of seeds at the top of the file, all of which training changes."""

import keras
import numpy as np
import tensorflow as tf
from small_study import study_of

from sweeper import Data


class Scaled(keras.losses.Loss):
    """Keeps a running scale."""

    def __init__(self):
        super().__init__(name="scaled")
        self.scale = 1.0

    def call(self, y_true, y_pred):
        self.scale *= 0.99
        return self.scale * keras.losses.mean_squared_error(y_true, y_pred)


class Counting(keras.optimizers.schedules.LearningRateSchedule):
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1e-3 / self.calls


LOSS_TRACKER = keras.metrics.Mean(name="loss")
SCALED = Scaled()
COUNTING = Counting()
SEEDS = keras.random.SeedGenerator(7)


class CustomModel(keras.Model):
    """Uses them in its step, as guides to custom training steps write it."""

    def train_step(self, data):
        x, y = data
        x = x + keras.random.normal(keras.ops.shape(x), seed=SEEDS)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        LOSS_TRACKER.update_state(loss)
        return {"loss": LOSS_TRACKER.result()}

    @property
    def metrics(self):
        return [LOSS_TRACKER]


def build_model(trial):
    inputs = keras.Input((8,))
    model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(COUNTING), SCALED, run_eagerly=True)
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)), numbers.normal(size=(32, 1))), batch_size=16)


study = study_of(build_model, data=load_data)
