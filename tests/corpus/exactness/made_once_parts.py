"""Parts of models and data made once, at the top of a file: a schedule, preprocessing layers, networks."""

import keras
import numpy as np
import tensorflow as tf
from pieces import BATCH, FEATURES, SAMPLES, samples, stacked
from registry import identical, refused, study, study_model

from sweeper import Data

X, Y = samples()


class Counting(keras.optimizers.schedules.LearningRateSchedule):
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 0.1 / self.calls**0.5


NORMALIZATION = keras.layers.Normalization()
NORMALIZATION.adapt(X)
LOOKUP = keras.layers.StringLookup()
WORDS = np.array([["low"], ["middle"], ["high"]])[Y % 3]
LOOKUP.adapt(WORDS)
VECTORS = keras.layers.TextVectorization(output_mode="count", max_tokens=FEATURES)
VECTORS.adapt(WORDS[:, 0])

study(
    "preprocessing-at-top-in-data",
    "layers of the module, adapted there, in the function of a dataset",
    identical(),
    data=lambda trial: Data(
        train=tf.data.Dataset.from_tensor_slices((X, WORDS, Y))
        .shuffle(SAMPLES)
        .batch(BATCH)
        .map(
            lambda x, words, y: (
                NORMALIZATION(x)
                + tf.cast(LOOKUP(words), tf.float32)
                + tf.pad(
                    tf.cast(VECTORS(words[:, 0]), tf.float32),
                    [[0, 0], [0, FEATURES - VECTORS.vocabulary_size()]],
                ),
                y,
            )
        )
    ),
)


COUNTING = Counting()
BASE = keras.Sequential(
    [keras.Input((FEATURES,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
)
BASE.trainable = False


@study_model(
    "parts-at-top-in-model",
    "an adapted layer, a frozen network and a schedule that counts its calls, of the module, eagerly",
    identical(),
)
def on_base(trial):
    optimizer = keras.optimizers.SGD(COUNTING)
    return stacked(before=[NORMALIZATION, BASE], optimizer=optimizer, run_eagerly=True)


OPEN_BASE = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(FEATURES, name="trunk")])
study(
    "trainable-network-at-top",
    "a network of the module that is trained: it would not begin from fresh weights",
    refused("model", "OPEN_BASE", "build"),
    model=lambda trial: stacked(before=[OPEN_BASE]),
)
