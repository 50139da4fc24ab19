"""What differs from process to process: hashes, addresses, unseeded generators."""

import os

import keras
import numpy as np
from pieces import BATCH, samples
from registry import either, study_callback, study_data

from sweeper import Data


@study_data(
    "split-by-hash",
    "a split by the hash of strings, in processes of two fork servers",
    either("hash"),
    own_server=True,
)
def split_by_hash(trial):
    x, y = samples(count=60)
    chosen = [i for i in range(len(x)) if hash(f"sample-{i}") % 3]
    chosen = (chosen * 2)[:40]
    return Data(train=(x[chosen], y[chosen]), batch_size=BATCH)


@study_data(
    "unseeded-default-rng",
    "np.random.default_rng() without a seed in the data factory",
    either("default_rng"),
)
def unseeded(trial):
    x, y = samples()
    noise = np.random.default_rng().normal(0, 0.1, x.shape).astype("float32")
    return Data(train=(x + noise, y), batch_size=BATCH)


@study_callback(
    "state-beside-environment",
    "a callback that counts in an environment variable",
    either("environ"),
)
class InEnvironment(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        os.environ["STEP"] = str(int(os.environ.get("STEP", "0")) + 1)
        self.model.optimizer.learning_rate = 0.1 / int(os.environ["STEP"]) ** 0.5
