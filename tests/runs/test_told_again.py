"""A trial that goes on tells again what its checkpoint knows: the row may have died with a worker."""

import keras
import numpy as np
import pytest

import sweeper
from sweeper.checkpoint.reading import load_newest
from sweeper.run.protocol.messages import CheckpointCommitted, EpochsEnded
from sweeper.run.trial.run import TrialObserver


class Collecting:
    """A link that keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The last checkpoint of a training of two epochs."""
    directory = tmp_path_factory.mktemp("trained")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    sweeper.fit(model, data, epochs=2, checkpoints=directory)
    found = load_newest([directory], pytest.fail)
    assert found is not None
    return found


def resumed(loaded):
    link = Collecting()
    observer = TrialObserver(link, "epoch")
    observer.resumed(loaded)
    return observer, link.sent


def test_the_checkpoint_and_the_epochs_are_told_again(loaded):
    observer, sent = resumed(loaded)
    [committed] = [each for each in sent if isinstance(each, CheckpointCommitted)]
    assert (committed.step, committed.digest) == (loaded.step, loaded.digest)
    assert (committed.epoch, committed.path) == (loaded.epoch, str(loaded.path))
    [ended] = [each for each in sent if isinstance(each, EpochsEnded)]
    assert [record.epoch for record in ended.epochs] == [0, 1]
    assert observer.committed_step == loaded.step
