"""A driver that runs no trial tells of each, from the study's status alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.records.events import AttemptEnded, AttemptStarted, EpochFinished, TrainingStarted
from sweeper.records.results import TrialStatus
from sweeper.run.cluster.driver import EpochClock, changes_of

BEGUN = TrialStatus(3, "running", {}, None, 0, 5)
TRAINED = replace(BEGUN, params={"x": 1}, epoch=2, metrics={"loss": 0.5})


def said(was: TrialStatus | None, now: TrialStatus) -> list[object]:
    return [
        replace(event, seconds=0.0) if isinstance(event, EpochFinished) else event
        for event in changes_of(was, now, EpochClock())
    ]


def test_a_trial_is_told_of_from_its_start_to_its_end() -> None:
    assert said(None, BEGUN) == [AttemptStarted(3, 1)]
    assert said(BEGUN, TRAINED) == [
        TrainingStarted(3, {"x": 1}, 5, 0, 0, 0),
        EpochFinished(3, 1, 0, {"loss": 0.5}, 0.0),
    ]
    longer = replace(TRAINED, epoch=3)
    assert said(TRAINED, longer) == [EpochFinished(3, 2, 0, {"loss": 0.5}, 0.0)]
    done = replace(longer, epoch=5, state="complete", value=0.5)
    assert said(longer, done)[-1] == AttemptEnded(3, 1, "complete", 0.5, None)


def test_a_trial_that_begins_and_ends_between_two_polls_is_told_of_too() -> None:
    failed = replace(BEGUN, state="failed", error="ValueError: no")
    assert said(None, failed) == [
        AttemptStarted(3, 1),
        AttemptEnded(3, 1, "failed", None, "ValueError: no"),
    ]


def test_another_attempt_is_told_of_with_the_epoch_from_which_it_goes_on() -> None:
    interrupted = replace(TRAINED, state="interrupted")
    assert said(TRAINED, interrupted) == [AttemptEnded(3, 1, "interrupted", None, None)]
    resumed = replace(TRAINED, attempts=2)
    assert said(interrupted, resumed) == [
        AttemptStarted(3, 2),
        TrainingStarted(3, {"x": 1}, 5, 0, 2, 2),
    ]
    over = replace(interrupted, attempts=2, epoch=3)
    assert said(resumed, replace(resumed, epoch=3)) == [
        EpochFinished(3, 2, 0, {"loss": 0.5}, 0.0),
    ]
    assert [type(each) for each in said(interrupted, over)] == [
        AttemptStarted,
        TrainingStarted,
        EpochFinished,
        AttemptEnded,
    ]


@pytest.mark.parametrize("state", ["interrupted", "complete", "paused", "waiting"])
def test_nothing_is_told_of_a_trial_that_does_not_run(state: str) -> None:
    still = replace(TRAINED, state=state)  # type: ignore[arg-type]
    assert said(still, replace(still, epochs=7)) == []
