"""A tokenizer fitted at import, held by a callback that only reads it."""

from __future__ import annotations

import keras
import numpy as np

from sweeper import Data, Study


class Tokenizer:
    def __init__(self):
        self.index = {}

    def fit(self, texts):
        for text in texts:
            for word in text.split():
                self.index.setdefault(word, len(self.index))
        return self

    def encode(self, text):
        return [self.index[word] for word in text.split()]


tokenizer = Tokenizer().fit(["to be or not to be"])


class Show(keras.callbacks.Callback):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    def on_epoch_end(self, epoch, logs=None):
        print(self.tokenizer.encode("to be"))


def build_model(trial):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.compile(
        optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def load_data(trial):
    numbers = np.random.default_rng(trial.seed)
    return Data(train=(numbers.normal(size=(32, 8)).astype("float32"), numbers.integers(0, 2, 32)))


def build_callbacks(trial):
    return [Show(tokenizer)]


study = Study(
    name="tokenizer",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="loss",
    epochs=1,
    trials=2,
)
