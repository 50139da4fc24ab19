"""The study that the tests of repositories keep, and what is stored of its trials."""

from dataclasses import replace

from sweeper.db.repository import Claim, StudyRow, Waiting, WorkerIdentity

ME = WorkerIdentity.here()
ROW = StudyRow(
    name="digits",
    definition={"epochs": 3, "trials": 4, "sampler": {"name": "random"}},
    objective="val_accuracy",
    direction="maximize",
    target=4,
    window=None,
    seed=7,
)


def defined(**more):
    """Return the study with more, or other, entries of its definition."""
    return replace(ROW, definition={**ROW.definition, **more})


def seed(number):
    return 1000 + number


def take(repository, study="digits", worker=ME, **options):
    claimed = repository.claim(study, worker, seed, **options)
    assert isinstance(claimed, Claim), claimed
    return claimed


def why_waiting(repository, study="digits"):
    """Return the reason for which there is no trial to claim now."""
    waiting = repository.claim(study, ME, seed)
    assert isinstance(waiting, Waiting), waiting
    return waiting.reason


def evaluate(repository, trial=0, **changes):
    """Store what a checkpoint of a trial gave."""
    key = {"step": 20, "epoch": 1, "digest": "ab", "data": "test", "data_digest": "cd"}
    repository.record_evaluation("digits", trial, **{**key, "metrics": {"loss": 1.0}, **changes})
