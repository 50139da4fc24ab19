"""Which of eight learning rates is best, and is it?

One training of each rate names a winner, which is partly the luckiest. Then the leading rates are trained
again with new seeds, and ranked by the new values only::

    sweeper run studies/digits_repeats.py
    sweeper confirm digits-repeats --best 4 --repeats 6

The best single training is that of 0.01; the confirmed leader is 0.015. Real data, the digits that ship with scikit-learn: 200 of them to train on, so that trainings differ as they
do on larger problems, and 897 to validate. About a minute on two cores.
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits

from sweeper import Data, Study, Trial


def build_model(trial: Trial) -> keras.Model:
    """Return a small network with dropout, built for every trial."""
    rate = trial.suggest_float("learning_rate", 1e-4, 1.0, log=True)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(rate), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Return the first 200 digits for training, and the last 897 for validation."""
    pixels, digits = load_digits(return_X_y=True)
    pixels /= 16.0
    return Data(
        train=(pixels[:200], digits[:200]),
        validation=(pixels[-897:], digits[-897:]),
        batch_size=20,
    )


study = Study(
    name="digits-repeats",
    model=build_model,
    data=load_data,
    objective="val_accuracy",
    direction="maximize",
    epochs=12,
    trials=8,
    sampler="grid",
    grid={"learning_rate": [0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03]},
    seed=1,
)
