"""A vocabulary adapted at import, inside every model."""

import keras
import tensorflow as tf
from small_study import compiled, study_of

from sweeper import Data

vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
vectorize.adapt(["a b c", "b c d"])


def build_model(trial):
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            vectorize,
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    return compiled(model)


def load_data(trial):
    return Data(train=(tf.constant([["a b"], ["c d"]]), tf.constant([0, 1])))


study = study_of(build_model, data=load_data)
