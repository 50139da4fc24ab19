"""The study that the tests of repositories keep, and trials of it."""

from sweeper.db.repository import Claim, StudyRow, WorkerIdentity

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


def seed(number):
    return 1000 + number


def take(repository, study="digits", worker=ME, **given):
    claimed = repository.claim(study, worker, seed, **given)
    assert isinstance(claimed, Claim), claimed
    return claimed
