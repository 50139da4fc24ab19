"""Of many checkpoints of several trainings, which network is the best on data held out?

A network that is too large for 284 biopsies (breast cancer, from scikit-learn) begins to overfit
after a while. Every 20 steps it is validated, and the checkpoint is kept if its validation cost is
above its training cost, the side on which overfitting begins, and still low. Afterwards each is
measured on a test split that no training has seen. Some ten seconds on one core::

    sweeper run studies/checkpoint_choice.py
    sweeper evaluate checkpoint-choice --top 5
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from sweeper import Data, Keep, Study, Trial

STEPS = 20
"""Between two validations, and two checkpoints."""


def build_model(trial: Trial) -> keras.Model:
    """A multilayer perceptron with more weights than there are measurements."""
    model = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(trial.suggest_float("dropout", 0.0, 0.5)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-2, log=True)
    model.compile(
        optimizer=keras.optimizers.Adam(rate), loss="binary_crossentropy", metrics=["accuracy"]
    )
    return model


def load_data(_trial: Trial) -> Data:
    """Half of the biopsies to train on, a quarter to validate on, a quarter held out."""
    x, y = load_breast_cancer(return_X_y=True)
    x, x_rest, y, y_rest = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
    x_val, x_test, y_val, y_test = train_test_split(
        x_rest, y_rest, test_size=0.5, random_state=0, stratify=y_rest
    )
    scaler = StandardScaler().fit(x)
    return Data(
        train=(scaler.transform(x), y),
        validation=(scaler.transform(x_val), y_val),
        test=(scaler.transform(x_test), y_test),
        batch_size=16,
        steps_per_epoch=STEPS,
    )


def is_candidate(metrics: Mapping[str, float]) -> bool:
    """Whether a checkpoint is worth keeping: not overfitted by much, and past the easy part."""
    return metrics["loss"] < metrics["val_loss"] < 0.15


study = Study(
    name="checkpoint-choice",
    model=build_model,
    data=load_data,
    objective="val_loss",
    direction="minimize",
    epochs=20,
    trials=4,
    sampler="random",
    keep=Keep(last=1, best=1, monitor="val_loss", mode="min", when=is_candidate, at_most=150),
    seed=0,
)
