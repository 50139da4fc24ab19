"""A rung's decision is made again from what is stored, and what does not follow from it is found."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fake_workers import settings_of

from sweeper.checks.decisions import check_rungs
from sweeper.records.lengths import ComparedTrial, RungDecision, RungRecord
from sweeper.records.results import AttemptRecord, EpochRecord, TrialRecord
from sweeper.spec.budgets import Halving

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = settings_of("digits", trials=3, epochs=9, budget=Halving(min_epochs=3))


def trial(number: int, state: Any, values: list[float], outcomes: list[Any]) -> TrialRecord:
    return TrialRecord(
        study="digits",
        number=number,
        state=state,
        params={},
        value=values[-1] if values else None,
        seed=1,
        digest=None,
        epochs=tuple(EpochRecord(n, {"loss": value}) for n, value in enumerate(values)),
        attempts=tuple(
            AttemptRecord(n, outcome, 0, 0, "here", 1, NOW, NOW)
            for n, outcome in enumerate(outcomes, start=1)
        ),
    )


def study(*compared: ComparedTrial) -> dict[int, TrialRecord]:
    """A trial that failed before its rung, one that was left there, and one that went on."""
    decision = RungDecision(0, 0, 3, NOW, compared)
    trials = (
        trial(0, "failed", [0.1], ["failed"]),
        trial(1, "pruned", [0.9, 0.8, 0.7], ["paused"]),
        trial(2, "complete", [0.9, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], ["paused", "complete"]),
    )
    return {
        each.number: replace(each, rungs=(RungRecord(3, of.value, of.promoted, decision),))
        for each, of in zip(trials, compared, strict=True)
    }


FAILED = ComparedTrial(0, None, promoted=False)
LEFT = ComparedTrial(1, 0.7, promoted=False)
PROMOTED = ComparedTrial(2, 0.4, promoted=True)


def found(trials: dict[int, TrialRecord], number: int) -> list[str]:
    return [finding.message for finding in check_rungs(trials[number], trials, SETTINGS)]


def test_a_decision_that_follows_from_what_is_stored_is_right() -> None:
    trials = study(FAILED, LEFT, PROMOTED)
    assert [found(trials, number) for number in trials] == [[], [], []]


def test_a_value_that_was_changed_is_found_by_the_trials_number() -> None:
    trials = study(FAILED, replace(LEFT, value=0.6), PROMOTED)
    assert found(trials, 2) == [
        (
            "the rung after 3 epochs of the trials from 0 on compared trial 1 with the value "
            "0.6, but its epochs have 0.7"
        )
    ]


def test_a_decision_that_was_changed_is_found_and_what_became_of_the_trial() -> None:
    trials = study(FAILED, replace(LEFT, promoted=True), replace(PROMOTED, promoted=False))
    assert found(trials, 1) == [
        (
            "the rung after 3 epochs of the trials from 0 on promoted the trials [1], but by "
            "the values it should have promoted [2]"
        ),
        (
            "the rung after 3 epochs of the trials from 0 on promoted trial 1, but that is pruned after 3 "
            "epochs"
        ),
    ]
    assert found(trials, 2)[1].endswith("left behind trial 2, but that is complete after 9 epochs")


def test_a_member_that_was_left_out_is_found() -> None:
    trials = study(FAILED, LEFT, replace(PROMOTED, number=3))
    trials[3] = replace(trials.pop(2), number=3)
    assert "compared the trials [0, 1, 3], but its members are [0, 1, 2]" in found(trials, 3)[0]


def test_a_value_that_was_nan_is_none() -> None:
    trials = study(FAILED, replace(LEFT, value=None), PROMOTED)
    nan = tuple(EpochRecord(n, {"loss": math.nan}) for n in range(3))
    trials[1] = replace(trials[1], epochs=nan)
    assert [found(trials, number) for number in trials] == [[], [], []]
