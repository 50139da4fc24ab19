"""Which small network suits handwritten digits, when most configurations may be given up early?

Forty-nine random configurations of learning rate, units, dropout and momentum, on the 1,797 digits that
ship with scikit-learn, under Hyperband: 27 trials begin with one epoch, 12 with three, 6 with nine, and 4
train for all 27. Some minutes on two cores::

    sweeper run studies/digits_hyperband.py
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeper import Data, Hyperband, Study, Trial


def build_model(trial: Trial) -> keras.Model:
    """A multilayer perceptron of one hidden layer."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(trial.suggest_int("units", 8, 256, log=True), activation="relu"),
            keras.layers.Dropout(trial.suggest_float("dropout", 0.0, 0.6)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(
            trial.suggest_float("learning_rate", 1e-4, 1.0, log=True),
            momentum=trial.suggest_float("momentum", 0.0, 0.99),
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
    name="digits-hyperband",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=27,
    trials=49,
    sampler="random",
    budget=Hyperband(),
    seed=0,
)
