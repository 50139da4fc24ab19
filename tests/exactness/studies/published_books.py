"""Callbacks that go back, plan and note: scalers, plateaus, best weights, noise."""

import keras
import numpy as np
from pieces import BATCH, samples
from registry import either, identical, study_callback, study_data
from sklearn.preprocessing import StandardScaler

from sweeper import Data


@study_data(
    "scaler-fitted-on", "a StandardScaler that is fitted further with every batch", either("scaled")
)
def scaled_data(trial):
    scaler = StandardScaler()
    x, y = samples()

    def scaled(epoch):
        for start in range(0, len(x), BATCH):
            part = x[start : start + BATCH]
            scaler.partial_fit(part)
            yield scaler.transform(part).astype("float32"), y[start : start + BATCH]

    return Data(train=scaled)


@study_callback(
    "annealed-weight-noise",
    "noise on the weights from a Philox generator and from NumPy's global one",
    identical(),
)
class NoisyGradients(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rng = np.random.Generator(np.random.Philox(3))
        self.scale = 0.05

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        noise = self.rng.normal(0, self.scale, kernel.shape) + np.random.normal(0, 1e-3)
        kernel.assign(kernel.value + noise.astype("float32"))
        self.scale *= 0.95
