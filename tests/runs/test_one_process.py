"""A trial is one process: strategies over several are refused by name, before training."""

import os

import pytest
import tensorflow as tf

import sweeper
from sweeper import DefinitionError, FactoryError
from sweeper.definition.trial import Trial
from sweeper.run.trial.parts import strategy_scope
from sweeper.train.randomness.seeds import TrialSeeds

REMOVED = (
    "sweeper.MultiWorker was removed: a trial trains in one process; use "
    "Study(strategy=lambda trial: tf.distribute.MirroredStrategy()), which trains on all GPUs that the trial "
    "sees, and run other trials on other hosts (`sweeper worker`)"
)


def test_a_multi_worker_strategy_of_the_users_own_is_refused_and_waits_for_nobody(
    monkeypatch, tmp_path
):
    """With the variable it would wait for the process at an address where nobody is."""
    cluster = '{"cluster": {"worker": ["127.0.0.1:9", "127.0.0.1:10"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    trial = Trial(number=0, seed=0, directory=tmp_path, ask=lambda *_: None)

    def factory(_trial):
        return tf.distribute.MultiWorkerMirroredStrategy()

    with (
        pytest.raises(FactoryError) as refused,
        strategy_scope(factory, trial, TrialSeeds(0, 0)),
    ):
        pass
    assert str(refused.value) == (
        "the model's strategy is a CollectiveAllReduceStrategy, which is not supported: a trial trains in one "
        "process; use tf.distribute.MirroredStrategy, which trains on all GPUs that the trial sees, and run "
        "other trials on other hosts (`sweeper worker`)"
    )
    assert os.environ["TF_CONFIG"] == cluster


def test_the_removed_name_says_what_to_use_instead():
    with pytest.raises(DefinitionError) as refused:
        _ = sweeper.MultiWorker
    assert str(refused.value) == REMOVED
