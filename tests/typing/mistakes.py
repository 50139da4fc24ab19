"""Mistakes that a type checker finds in a study: an ignored one that is none is an error of its own."""

from __future__ import annotations

from typing import Any

import sweeper


def build_model(trial: sweeper.Trial) -> Any:
    rate: str = trial.suggest_float("rate", 0.1, 1.0)  # type: ignore[assignment]
    return rate


def load_data(trial: sweeper.Trial) -> sweeper.Data:
    return sweeper.Data(train=None, batch_size=trial.suggest_categorical("size", ["8"]))  # type: ignore[arg-type]


study = sweeper.Study(
    name="mistakes",
    model=build_model,
    data=load_data,
    epochs="30",  # type: ignore[arg-type]
    trials=2,
    direction="upwards",  # type: ignore[arg-type]
)
results = study.run(workers="two")  # type: ignore[arg-type]
best: int = results.best  # type: ignore[assignment]
