"""The benchmark's sweep as one writes it with Optuna alone: one process, model.fit, SQLite.

Usage: ``python benchmarks/optuna_sweep.py DIRECTORY``
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import optuna
from digits import BATCH, EPOCHS, network, x, x_val, y, y_val
from fitted_trial import TRIALS

directory = sys.argv[1]


def objective(trial: optuna.Trial) -> float:
    keras.utils.set_random_seed(trial.number)
    model = network(trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True))

    class Reports(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            trial.report((logs or {})["val_accuracy"], epoch)

    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(x_val, y_val),
        verbose=0,
        callbacks=[
            keras.callbacks.ModelCheckpoint(f"{directory}/trial-{trial.number}.keras"),
            Reports(),
        ],
    )
    return float(history.history["val_accuracy"][-1])


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    storage=f"sqlite:///{directory}/optuna.db",
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=0),
)
study.optimize(objective, n_trials=TRIALS)
