"""Two RMSprop learning rates, each with a network of its own: the comparison done right.

The same network and data as in `examples/keras_aliasing.py`, where the second rate goes on training
what the first one has trained. Here `build_model` builds, so neither curve knows of the other; both
start at the same epoch and the same accuracy. About ten seconds on two cores::

    sweeper run studies/rmsprop_two_rates.py
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Study, Trial

RATES = (0.001, 0.0001)


def build_model(trial: Trial) -> keras.Model:
    """A multilayer perceptron with dropout; built here, so that it is this trial's alone."""
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
        optimizer=keras.optimizers.RMSprop(trial.suggest_float("learning_rate", 1e-5, 1e-1)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Pixels scaled to 0..1; a fifth of the digits for validation, the same for both trials."""
    pixels, digits = load_digits(return_X_y=True)
    x, x_validation, y, y_validation = train_test_split(
        pixels / 16.0, digits, test_size=0.2, random_state=0, stratify=digits
    )
    return Data(train=(x, y), validation=(x_validation, y_validation), batch_size=128)


study = Study(
    name="rmsprop-two-rates",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=30,
    trials=2,
    sampler="grid",
    grid={"learning_rate": list(RATES)},
    seed=0,
)
