"""A trial that goes on tells again what its checkpoint knows: the row may have died with a worker."""

import keras
import numpy as np
import pytest
from short_trials import Answering

import sweeper
from sweeper.checkpoint.reading import load_newest
from sweeper.run.protocol.messages import CheckpointCommitted, EpochsEnded
from sweeper.run.trial.run import TrialObserver


def test_the_checkpoint_and_the_epochs_are_told_again(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    sweeper.fit(model, data, epochs=2, checkpoints=tmp_path)
    loaded = load_newest([tmp_path], pytest.fail)
    assert loaded is not None
    link = Answering()
    observer = TrialObserver(link, "epoch")
    observer.resumed(loaded)
    [committed] = [each for each in link.messages if isinstance(each, CheckpointCommitted)]
    assert (committed.step, committed.digest) == (loaded.step, loaded.digest)
    assert (committed.epoch, committed.path) == (loaded.epoch, str(loaded.path))
    [ended] = [each for each in link.messages if isinstance(each, EpochsEnded)]
    assert [record.epoch for record in ended.epochs] == [0, 1]
    assert observer.committed_step == loaded.step
