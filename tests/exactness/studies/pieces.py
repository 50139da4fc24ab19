"""What most studies of the corpus share: a dozen units, forty samples, five batches an epoch."""

import keras
import numpy as np

from sweeper import Data

FEATURES, CLASSES, SAMPLES, BATCH = 6, 3, 40, 8


def samples(seed=3, count=SAMPLES):
    """Random floats, and labels that follow from them."""
    numbers = np.random.default_rng(seed)
    x = numbers.normal(size=(count, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES] + 0.5 * x[:, CLASSES:], axis=1)


def load_data(trial):
    return Data(train=samples(), batch_size=BATCH)


def load_validated(trial):
    return Data(train=samples(), validation=samples(4, 16), batch_size=BATCH)


def layers_of():
    return [
        keras.Input((FEATURES,)),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dropout(0.25),
        keras.layers.Dense(CLASSES, activation="softmax"),
    ]


def compiled(model, optimizer=None, loss="sparse_categorical_crossentropy", **options):
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.1, 0.9), loss=loss, **options)
    return model


def build_model(trial):
    return compiled(keras.Sequential(layers_of()), metrics=["accuracy"])


def build_eager(trial):
    return compiled(keras.Sequential(layers_of()), run_eagerly=True)


def crossentropy(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


def with_loss(loss, **options):
    return compiled(keras.Sequential(layers_of()), loss=loss, **options)
