"""What is known of an attempt whose worker is gone: it ended at its newest checkpoint."""

from dataclasses import replace

import pytest

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.records.results import CheckpointRecord

ME = WorkerIdentity.here()
GONE = replace(ME, started=0.0)
ROW = StudyRow(
    name="digits",
    definition={"epochs": 3, "trials": 2, "sampler": {"name": "random"}},
    objective="val_accuracy",
    direction="maximize",
    target=2,
    window=None,
    seed=7,
)


@pytest.fixture
def repository(file):
    with Database.open(f"sqlite:///{file}", create=False) as database:
        repository = Repository(database)
        repository.create_or_open(ROW)
        yield repository


def take(repository, worker):
    claimed = repository.claim("digits", worker, lambda number: number)
    assert isinstance(claimed, Claim)
    return claimed


def commit(repository, claimed, *steps):
    for step in steps:
        path = f"trial-{claimed.number}/attempt-{claimed.attempt}/step-{step}"
        repository.record_checkpoint(
            claimed.token,
            CheckpointRecord(step=step, epoch=1, digest="ab" * 16, bytes=9, path=path),
        )


def ends(repository, trial):
    return [(a.outcome, a.end_step) for a in repository.trial("digits", trial).attempts]


def test_a_lost_attempt_ended_at_the_newest_of_its_own_checkpoints(repository):
    first = take(repository, GONE)
    commit(repository, first, 20, 60, 40)
    other = take(repository, GONE)
    commit(repository, other, 900)
    assert len(repository.release_lost("digits")) == 2
    assert ends(repository, 0) == [("lost", 60)], "the highest step, and none of another trial's"
    assert ends(repository, 1) == [("lost", 900)]

    second = take(repository, GONE)
    assert (second.number, second.attempt) == (0, 2)
    commit(repository, second, 50)
    repository.release_lost("digits")
    assert ends(repository, 0) == [("lost", 60), ("lost", 50)], "none of another attempt's"


def test_of_a_lost_attempt_without_checkpoints_no_last_step_is_known(repository):
    take(repository, GONE)
    repository.release_lost("digits")
    assert ends(repository, 0) == [("lost", None)]
    [attempt] = repository.trial("digits", 0).attempts
    assert (attempt.error or "").startswith("its worker was killed")


def test_an_attempt_that_is_not_lost_is_given_no_last_step(repository):
    commit(repository, take(repository, ME), 60)
    assert repository.release_lost("digits") == ()
    assert ends(repository, 0) == [(None, None)]
