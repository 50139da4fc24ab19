"""Following a study from its database: every piece of news once, and none from before."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.db.attempts import Ending
from sweeper.db.following import StudyFollower
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.records.results import EpochRecord
from sweeper.spec.space import FloatRange

STUDY = "followed"


@pytest.fixture
def study(repository: Repository) -> Repository:
    repository.create_or_open(StudyRow(STUDY, {}, "loss", "minimize", 9, None, 0))
    return repository


def claim(repository: Repository) -> Claim:
    claimed: Any = repository.claim(STUDY, WorkerIdentity.here(), lambda number: number)
    assert isinstance(claimed, Claim)
    return claimed


def train(repository: Repository, attempt: Claim, *epochs: int) -> None:
    records = [EpochRecord(epoch, {"loss": 1.0 / (epoch + 1)}) for epoch in epochs]
    repository.record_epochs(attempt.token, records, {r.epoch: r.metrics["loss"] for r in records})


def test_each_step_of_a_trials_life_is_news_once(study: Repository) -> None:
    follower = StudyFollower(study, STUDY)
    assert follower.look() == ()
    attempt = claim(study)
    [news] = follower.look()
    assert (news.trial, news.attempt, news.is_new, news.begins) == (0, 1, True, False)
    study.record_parameter(attempt.token, "rate", FloatRange(0.0, 1.0), 0.5)
    study.record_process(attempt.token, 4711, "fork", 0)
    [news] = follower.look()
    assert (news.is_new, news.begins, dict(news.params)) == (False, True, {"rate": 0.5})
    train(study, attempt, 0, 1)
    [news] = follower.look()
    assert (news.begins, [e.epoch for e in news.epochs]) == (False, [0, 1])
    train(study, attempt, 2)
    [news] = follower.look()
    assert [e.epoch for e in news.epochs] == [2]
    [news] = follower.look()
    assert (news.is_new, news.begins, news.epochs, news.outcome) == (False, False, (), None)
    study.finish(attempt.token, Ending("complete", end_step=9, value=0.25, digest="d" * 32))
    [news] = follower.look()
    assert (news.outcome, news.value, news.fails_trial) == ("complete", 0.25, False)
    assert follower.look() == ()


def test_what_was_over_before_is_no_news_and_what_was_open_is(study: Repository) -> None:
    still_open, over = claim(study), claim(study)
    train(study, still_open, 0)
    study.finish(over.token, Ending("complete", end_step=1, value=1.0, digest="d" * 32))
    follower = StudyFollower(study, STUDY)
    [news] = follower.look()
    assert (news.trial, news.is_new, [e.epoch for e in news.epochs]) == (0, True, [0])
    study.finish(still_open.token, Ending("failed", error="no such layer"))
    [news] = follower.look()
    assert (news.outcome, news.error, news.fails_trial) == ("failed", "no such layer", True)
    assert follower.look() == ()


def test_a_whole_trial_between_two_looks_is_reported_in_one(study: Repository) -> None:
    follower = StudyFollower(study, STUDY)
    attempt = claim(study)
    study.record_process(attempt.token, 4711, "fork", 0)
    train(study, attempt, 0)
    study.finish(attempt.token, Ending("complete", end_step=1, value=1.0, digest="d" * 32))
    [news] = follower.look()
    assert (news.is_new, news.begins, news.outcome) == (True, True, "complete")
    assert [e.epoch for e in news.epochs] == [0]


def test_a_resumed_trial_does_not_tell_the_epochs_of_its_earlier_attempt_again(
    study: Repository,
) -> None:
    first = claim(study)
    train(study, first, 0, 1)
    study.finish(first.token, Ending("interrupted", end_step=2))
    follower = StudyFollower(study, STUDY)
    again = claim(study)
    study.record_process(again.token, 4712, "fork", 2)
    train(study, again, 0, 1)
    [news] = follower.look()
    assert (news.attempt, news.start_step, news.begins_after, news.epochs) == (2, 2, 1, ())
    train(study, again, 2)
    [news] = follower.look()
    assert [e.epoch for e in news.epochs] == [2]


def test_a_failed_attempt_whose_trial_goes_on_fails_no_trial(study: Repository) -> None:
    follower = StudyFollower(study, STUDY)
    attempt = claim(study)
    study.finish(attempt.token, Ending("failed", error="once", fault="error", goes_on=True))
    [news] = follower.look()
    assert (news.outcome, news.fails_trial) == ("failed", False)
    assert claim(study).faults("error") == 1


def test_faults_are_counted_by_kind_and_a_retry_forgets_them(study: Repository) -> None:
    for fault in ("crash", "memory", "memory"):
        study.finish(claim(study).token, Ending("crashed", error=fault, fault=fault))
    third = claim(study)
    assert [third.faults(kind) for kind in ("crash", "memory", "error", "time")] == [1, 2, 0, 0]
    study.finish(third.token, Ending("failed", error="time", fault="time"))
    study.retry(STUDY, 0)
    again = claim(study)
    assert (again.number, again.faults("crash"), again.faults("memory")) == (0, 0, 0)
