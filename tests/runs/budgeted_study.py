"""The study under a budget, which is to be the same sweep wherever its workers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from study_files import StudyText

from sweeper.records.results import TrialRecord

BUDGETED_STUDY = StudyText(
    name="budgeted",
    head="from sweeper import Hyperband",
    data="return Data(train=(x[:160], y[:160]), validation=(x[160:], y[160:]), batch_size=32)",
    arguments="""objective="val_loss", epochs=4, trials=6, concurrency=2, sampler="random",
    budget=Hyperband(factor=2), checkpoint_every=Every(steps=2)""",
)
"""Rungs after 1 and 2 epochs; a round of 4 trials and 2 of the next 3, and 10 attempts."""


def decisions(trials: Sequence[TrialRecord]) -> dict[tuple[int, int], Any]:
    """Who was compared at each rung of each round, with what, and who went on."""
    return {
        (decision.first, decision.epochs): [
            (each.number, each.value, each.promoted) for each in decision.compared
        ]
        for trial in trials
        for rung in trial.rungs
        if (decision := rung.decision) is not None
    }
