"""The benchmark's sweep as one writes it with joblib alone: two processes of loky, model.fit, a file for each trial.

Nothing keeps two trials of a process apart, nothing is resumed, and there is no database.

Usage: ``python benchmarks/loky_sweep.py DIRECTORY``
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from joblib import Parallel, delayed

TRIALS = 16


def train(number: int, learning_rate: float, directory: str) -> float:
    """Train one trial, and return its last validation accuracy."""
    import keras
    import tensorflow as tf
    from digits import BATCH, EPOCHS, network, x, x_val, y, y_val

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(number)
    history = network(learning_rate).fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(x_val, y_val),
        verbose=0,
        callbacks=[keras.callbacks.ModelCheckpoint(f"{directory}/trial-{number}.keras")],
    )
    return float(history.history["val_accuracy"][-1])


if __name__ == "__main__":
    rates = 10 ** np.random.default_rng(0).uniform(-4, -2, TRIALS)
    Parallel(n_jobs=2)(
        delayed(train)(number, float(rate), sys.argv[1]) for number, rate in enumerate(rates)
    )
