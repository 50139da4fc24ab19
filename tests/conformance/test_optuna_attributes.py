"""What the worker writes for Optuna's tools when a trial ends: read by Optuna, and by no sampler."""

import pytest
from optuna_view import as_optuna_sees_it

from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, StudyRow, WorkerIdentity

ME = WorkerIdentity.here()


def ended(repository, *endings):
    """Run one trial that ends so, attempt by attempt."""
    for ending in endings:
        claim = repository.claim("digits", ME, lambda number: number)
        assert isinstance(claim, Claim)
        repository.record_process(claim.token, 1, "fork", 0)
        repository.finish(claim.token, ending)


@pytest.fixture(autouse=True)
def study(repository):
    more = {"epochs": 3, "further_objectives": [["seconds", "minimize"]]}
    repository.create_or_open(StudyRow("digits", more, "val_loss", "minimize", 4, None, 0))


def test_an_ended_trial_has_its_attempts_digest_and_reason_and_no_sampler_reads_them(repository):
    complete = Ending("complete", 30, 0.5, "d" * 32, further_values=(1.0,))
    failed = Ending("failed", 5, error="Traceback\n  x\nValueError: no such layer\n")
    ended(repository, Ending("crashed", 10, error="killed"), complete)
    ended(repository, failed)
    ended(repository, failed)
    repository.retry("digits", 2)
    ended(repository, complete)
    with as_optuna_sees_it(repository.database) as study:
        assert study.metric_names == ["val_loss", "seconds"]
        assert [trial.user_attrs for trial in study.get_trials()] == [
            {"attempts": 2, "digest": "d" * 32},
            {"attempts": 1, "failed because": "ValueError: no such layer"},
            {"attempts": 2, "digest": "d" * 32},
        ]
    seen = repository.finished_before("digits", 4)[0]
    assert (seen.value, seen.params, seen.intermediate) == (0.5, {}, {})
    assert "d" * 32 not in repr(seen)
