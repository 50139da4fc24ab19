"""The Python contract, as a user with a strict type checker writes it. Checked, never run."""

from __future__ import annotations

from typing import assert_type

import keras
import numpy as np

from sweeper import (
    BestTrial,
    Data,
    Every,
    Keep,
    Retries,
    Study,
    StudyResults,
    StudyStatus,
    Trial,
    TrialRecord,
    load_study,
)


def build_model(trial: Trial) -> keras.Model:
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
    units = trial.suggest_int("units", 16, 256, step=16)
    activation = trial.suggest_categorical("activation", ["relu", "gelu"])
    assert_type(rate, float)
    assert_type(units, int)
    assert_type(activation, str)
    model = keras.Sequential([keras.layers.Dense(units, activation=activation)])
    model.compile(
        optimizer=keras.optimizers.RMSprop(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def load_data(trial: Trial) -> Data:
    x, y = np.zeros((100, 64)), np.zeros(100)
    return Data(train=(x, y), validation=(x, y), batch_size=128)


def build_callbacks(trial: Trial) -> list[keras.callbacks.Callback]:
    return [keras.callbacks.EarlyStopping(patience=3 + trial.number)]


study = Study(
    name="digits-learning-rate",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    objective="val_accuracy",
    direction="maximize",
    epochs=30,
    trials=16,
    sampler="tpe",
    grid=None,
    pruner=None,
    concurrency=4,
    seed=0,
    checkpoint_every=Every(steps=100),
    keep=Keep(last=2),
    deterministic=True,
    threads=None,
    time_limit=3600,
    retries=Retries(error=1),
)
results = study.run(workers=2)
assert_type(results, StudyResults)
assert_type(results.best, TrialRecord)
assert_type(results.best.value, float | None)
assert_type(study.resume(workers=2), StudyResults)
assert_type(study.results(), StudyResults)
assert_type(study.status(), StudyStatus)
assert_type(study.status().best, BestTrial | None)
assert_type(load_study("studies/digits_learning_rate.py"), Study)
