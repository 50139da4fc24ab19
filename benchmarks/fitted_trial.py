"""One trial of the benchmark's sweep as one writes it without sweeper: model.fit, and a file for the model."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

TRIALS = int(os.environ.get("SWEEPER_BENCHMARK_TRIALS", "16"))
RATES = [float(rate) for rate in 10 ** np.random.default_rng(0).uniform(-4, -2, TRIALS)]


def train(number: int, learning_rate: float, directory: str) -> float:
    """Train one trial with one thread, and return its last validation accuracy."""
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
