"""Metrics of a model's own, a callback that holds the trial's model, and a cached PyDataset that never changes."""

import functools

import keras
import numpy as np
import tensorflow as tf
from small_study import study_of

from sweeper import Data

current = {}


class CustomModel(keras.Model):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.losses.mean_squared_error(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def build_model(trial):
    inputs = keras.Input((8,))
    model = current["model"] = CustomModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="adam")
    return model


class Sampler(keras.callbacks.Callback):
    def __init__(self, sampled):
        super().__init__()
        self.sampled = sampled
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(self.sampled.predict(np.zeros((1, 8)), verbose=0)[0, 0]))


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x = x
        self.y = y
        self.size = size

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        """Change nothing."""


@functools.cache
def batches(size):
    return Batches(np.zeros((32, 8), "float32"), np.zeros((32, 1), "float32"), size)


def load_data(trial):
    return Data(train=batches(trial.suggest_categorical("batch", [8])))


study = study_of(build_model, data=load_data, callbacks=lambda trial: [Sampler(current["model"])])
