"""What the worker writes for Optuna's tools when a trial ends: read by Optuna, and by no sampler."""

from dataclasses import replace

from optuna_view import as_optuna_sees_it
from stored_study import ROW, take

from sweeper.db.attempts import Ending


def ended(repository, *endings):
    """Run one trial that ends so, attempt by attempt."""
    for ending in endings:
        claim = take(repository)
        repository.record_process(claim.token, 1, "fork", 0)
        repository.finish(claim.token, ending)


def test_an_ended_trial_has_its_attempts_digest_and_reason_and_no_sampler_reads_them(repository):
    two = {**ROW.definition, "further_objectives": [["seconds", "minimize"]]}
    repository.create_or_open(replace(ROW, definition=two))
    complete = Ending("complete", 30, 0.5, "d" * 32, further_values=(1.0,))
    failed = Ending("failed", 5, error="Traceback\n  x\nValueError: no such layer\n")
    ended(repository, Ending("crashed", 10, error="killed"), complete)
    ended(repository, failed)
    ended(repository, failed)
    repository.retry("digits", 2)
    ended(repository, complete)
    with as_optuna_sees_it(repository.database) as study:
        assert study.metric_names == ["val_accuracy", "seconds"]
        assert [trial.user_attrs for trial in study.get_trials()] == [
            {"attempts": 2, "digest": "d" * 32},
            {"attempts": 1, "failed because": "ValueError: no such layer"},
            {"attempts": 2, "digest": "d" * 32},
        ]
    seen = repository.finished_before("digits", 4)[0]
    assert (seen.value, seen.params, seen.intermediate) == (0.5, {}, {})
    assert "d" * 32 not in repr(seen)
