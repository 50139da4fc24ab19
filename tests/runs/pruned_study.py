"""The study of pruned trials, which is to be the same sweep wherever its workers are."""

from __future__ import annotations

from collections.abc import Sequence

from study_files import StudyText

from sweeper.records.results import TrialRecord

PRUNED_STUDY = StudyText(
    name="pruned",
    keras="",
    head="import optuna",
    model="import keras",
    rate='trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)',
    arguments="""objective="val_loss", epochs=4, trials=12, concurrency=2,
    sampler=lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=4),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2)""",
)
"""Twelve trials of four epochs of 20 steps; the later ones are drawn from what others gave."""


def prunings(trials: Sequence[TrialRecord]) -> dict[int, int]:
    """After how many epochs each pruned trial ended, by its number."""
    return {t.number: len(t.epochs) for t in trials if t.state == "pruned"}
