"""Parts that the project's studies have in common."""

from __future__ import annotations

import keras

_layers = {"embedding": keras.layers.Dense(4, name="embedding")}


def embedding() -> keras.layers.Layer:
    return _layers["embedding"]
