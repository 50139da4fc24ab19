"""Which RMSprop learning rate suits a small network on handwritten digits?

Sixteen learning rates between 0.0001 and 0.1, drawn by TPE, on the 1,797 digits that ship with
scikit-learn. About a minute on two cores::

    sweeper run studies/digits_learning_rate.py
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Study, Trial


def build_model(trial: Trial) -> keras.Model:
    """A multilayer perceptron with dropout, built afresh for every trial."""
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
        optimizer=keras.optimizers.RMSprop(
            trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Pixels scaled to 0..1; a quarter of the digits for validation, the same for every trial."""
    pixels, digits = load_digits(return_X_y=True)
    x, x_validation, y, y_validation = train_test_split(
        pixels / 16.0, digits, test_size=0.25, random_state=0, stratify=digits
    )
    return Data(train=(x, y), validation=(x_validation, y_validation), batch_size=32)


study = Study(
    name="digits-learning-rate",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=30,
    trials=16,
    sampler="tpe",
    concurrency=4,
    seed=0,
)
