"""Callbacks that go back, plan and note: scalers, plateaus, best weights, noise."""

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
