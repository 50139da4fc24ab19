"""The Python contract, as a user with a strict type checker writes it. Checked, never run."""

from pathlib import Path
from typing import Any, assert_type

import keras
import numpy as np

from sweeper import (
    BestTrial,
    Data,
    EvaluationRecord,
    Every,
    EverySteps,
    Hyperband,
    Keep,
    Retries,
    StoredStudy,
    Study,
    StudyResults,
    StudyStatus,
    TrainingStep,
    Trial,
    TrialRecord,
    fit,
    load_study,
)
from sweeper.gradients import clip_by_global_norm, nan_to_zero


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
    x = np.zeros((100, 64))
    y = np.zeros(100)
    return Data(train=(x, y), validation=(x, y), test=(x, y), batch_size=128)


def build_callbacks(trial: Trial) -> list[keras.callbacks.Callback]:
    def told(step: int, logs: dict[str, Any], model: keras.Model) -> None:
        print(step, logs["loss"], model.name)

    return [keras.callbacks.EarlyStopping(patience=3 + trial.number), EverySteps(10, told)]


class Clipped(TrainingStep):
    def __init__(self, trial: Trial) -> None:
        super().__init__(gradients=[nan_to_zero, clip_by_global_norm(1.0 + trial.number)])

    def extra_losses(self) -> list[Any]:
        return [1e-4 * sum(keras.ops.sum(v**2) for v in self.trainable_variables())]


study = Study(
    name="digits-learning-rate",
    model=build_model,
    data=load_data,
    callbacks=build_callbacks,
    step=Clipped,
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
    budget=Hyperband(min_epochs=2),
)
results = study.run(workers=2)
assert_type(results, StudyResults)
assert_type(results.best, TrialRecord)
assert_type(results.best.value, float | None)
assert_type(study.resume(workers=2), StudyResults)
assert_type(study.results(), StudyResults)
assert_type(study.results().to_dataframe("epochs"), Any)
assert_type(study.status(), StudyStatus)
assert_type(study.evaluate(data=load_data), tuple[EvaluationRecord, ...])
assert_type(study.results().evaluations, tuple[EvaluationRecord, ...])
assert_type(study.status().best, BestTrial | None)
assert_type(load_study(Path("studies/digits_learning_rate.py")), Study)
loaded = load_study("digits-learning-rate")
assert_type(loaded, Study | StoredStudy)
assert_type(loaded.run(workers=2), StudyResults)
if isinstance(loaded, StoredStudy):
    assert_type(loaded.trials[3], TrialRecord)
    assert_type(loaded.best.load_model(at="best"), keras.Model)

model = keras.Sequential([keras.layers.Dense(1)])
arrays = (np.zeros((8, 4)), np.zeros(8))
fit(model, *arrays, 8, epochs=3, verbose=0, validation_data=arrays, checkpoints="checkpoints/a")
assert_type(fit(model, Data(arrays), checkpoints=Path("b")), keras.callbacks.History)

# Mistakes, each of which a type checker finds: an ignored one that is none is an error of its own.
# What refuses unknown arguments as the study is defined hides none from it.
Every(step=3)  # type: ignore[call-arg]
Keep(lats=2)  # type: ignore[call-arg]
Study(name="digits", model=build_model, data=load_data, epochs="three", trials=1)  # type: ignore[arg-type]
Study(name="digits", model=build_model, data=load_data, epochs=3, trials=1, direction="upwards")  # type: ignore[arg-type]
fit(model, *arrays, epoch=3, checkpoints="c")  # type: ignore[call-arg]
fit(model, *arrays)  # type: ignore[call-arg]
study.run(workers="two")  # type: ignore[arg-type]
best: int = results.best  # type: ignore[assignment]


def mistaken_data(trial: Trial) -> Data:
    rate: str = trial.suggest_float("rate", 0.1, 1.0)  # type: ignore[assignment]
    return Data(train=rate, batch_size=trial.suggest_categorical("size", ["8"]))  # type: ignore[arg-type]
