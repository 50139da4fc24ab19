"""Parts that the project's studies have in common."""

import keras

_layers = {"embedding": keras.layers.Dense(4, name="embedding")}


def embedding():
    return _layers["embedding"]
