"""What checkpoints gave is kept by checkpoint and data set on every database, the newest of each."""

import pytest
from stored_study import evaluate, take

from sweeper.db.attempts import Ending
from sweeper.declarations.space import Categorical, FloatRange
from sweeper.errors import UnknownStudyError
from sweeper.records.results import CheckpointRecord

PATH = "/runs/digits/trial-00000/attempt-01/checkpoints/step-000000020"


@pytest.fixture
def claim(digits):
    claimed = take(digits)
    digits.record_parameter(claimed.token, "rate", FloatRange(0.1, 1.0), 0.5)
    digits.record_parameter(claimed.token, "kind", Categorical(("a", None)), None)
    digits.record_checkpoint(claimed.token, CheckpointRecord(20, 1, "ab", 10, PATH))
    return claimed


def losses(repository):
    return [evaluation.metrics["loss"] for evaluation in repository.trial("digits", 0).evaluations]


def test_the_same_again_replaces_and_anything_else_stands_beside(repository, claim):
    evaluate(repository, metrics={"loss": 3.0})
    (first,) = repository.trial("digits", 0).evaluations
    evaluate(repository)
    (second,) = repository.trials("digits")[0].evaluations
    assert second.evaluated_at >= first.evaluated_at
    assert (second.trial, second.step, second.epoch, second.digest) == (0, 20, 1, "ab")
    assert (second.data, second.data_digest, second.path) == ("test", "cd", PATH)
    assert losses(repository) == [1.0]
    evaluate(repository, data_digest="ef", metrics={"loss": 2.0})
    evaluate(repository, data="x.py:test", metrics={"loss": 4.0})
    evaluate(repository, step=40, digest="other", metrics={"loss": 5.0})
    assert sorted(losses(repository)) == [1.0, 2.0, 4.0, 5.0]


def test_a_trial_goes_on_while_it_is_evaluated(repository, claim):
    """What is evaluated is known of a running trial, and stays known without its checkpoint."""
    asked = repository.trial("digits", 0).distributions
    assert asked == {"rate": FloatRange(0.1, 1.0), "kind": Categorical(("a", None))}
    evaluate(repository, metrics={"loss": float("inf")})
    repository.forget_checkpoint(claim.token, PATH)
    repository.finish(claim.token, Ending("complete", value=1.0, digest="d"))
    (evaluation,) = repository.trial("digits", 0).evaluations
    assert (evaluation.metrics["loss"], evaluation.path) == (float("inf"), None)


def test_of_a_trial_that_is_not_there_nothing_is_stored(repository, claim):
    with pytest.raises(UnknownStudyError, match="has no trial 1"):
        evaluate(repository, 1)
