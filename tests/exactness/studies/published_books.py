"""Callbacks that go back, plan and note: scalers, plateaus, best weights, noise."""

from __future__ import annotations

import keras
import numpy as np
from pieces import BATCH, samples
from registry import either, identical, study
from sklearn.preprocessing import StandardScaler

from sweeper import Data


def scaled_data(trial):
    scaler = StandardScaler()
    x, y = samples()

    def scaled(epoch):
        for start in range(0, len(x), BATCH):
            part = x[start : start + BATCH]
            scaler.partial_fit(part)
            yield scaler.transform(part).astype("float32"), y[start : start + BATCH]

    return Data(train=scaled)


study(
    "scaler-fitted-on",
    "a StandardScaler that is fitted further with every batch",
    either("scaled"),
    data=scaled_data,
)


class Patient(keras.callbacks.Callback):
    """Goes back to the best weights after bad epochs, as many times as it may."""

    def __init__(self):
        super().__init__()
        self.best = np.inf
        self.best_weights = None
        self.tries = {"left": 2, "log": []}

    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] < 0.9 * self.best:
            self.best, self.best_weights = logs["loss"], self.model.get_weights()
        elif self.tries["left"] > 0:
            self.tries["left"] -= 1
            self.tries["log"].append((epoch, logs["loss"]))
            self.model.set_weights(self.best_weights)
            self.model.optimizer.learning_rate *= 0.5


class NoisyGradients(keras.callbacks.Callback):
    """Adds annealed noise to the weights, by NumPy's global generator and one of its own."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.Generator(np.random.Philox(3))
        self.scale = 0.05

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        noise = self.rng.normal(0, self.scale, kernel.shape) + np.random.normal(0, 1e-3)
        kernel.assign(kernel.value + noise.astype("float32"))
        self.scale *= 0.95


study(
    "annealed-weight-noise",
    "noise on the weights from a Philox generator and from NumPy's global one",
    identical(),
    callbacks=lambda trial: [NoisyGradients()],
)
