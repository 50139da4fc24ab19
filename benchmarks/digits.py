"""The network and data that every benchmark here trains, the same for us and for what we compare."""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Study, Trial

EPOCHS = 5
BATCH = 32

pixels, labels = load_digits(return_X_y=True)
x, x_val, y, y_val = train_test_split(
    (pixels / 16.0).astype("float32"), labels, test_size=0.2, random_state=0
)


def network(learning_rate: float) -> keras.Model:
    """A multilayer perceptron with dropout, compiled with RMSprop."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def build_model(trial: Trial) -> keras.Model:
    return network(trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True))


def load_data(_trial: Trial) -> Data:
    return Data(train=(x, y), validation=(x_val, y_val), batch_size=BATCH)


study = Study(
    name="benchmark",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=EPOCHS,
    trials=16,
    sampler="tpe",
    concurrency=4,
    threads=1,
)
