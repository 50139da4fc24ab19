"""Runs studies in this process, below a directory of the test's own or of several tests that read."""

import pytest
import tensorflow as tf
from small_models import Runner, unbuilt

from sweeper import Keep


@pytest.fixture
def run(tmp_path):
    return Runner(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A study of `network` as the defaults have it, for tests that read it, or a copy."""
    return Runner(tmp_path_factory.mktemp("plain"))()


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """As `kept`, of a model that is built by its first batch and draws random numbers."""
    runner = Runner(tmp_path_factory.mktemp("noisy"))
    return runner(unbuilt, objective="val_loss", keep=Keep(last=9))


@pytest.fixture(scope="module")
def without_constant_folding():
    """Single steps and steps in a loop of the graph are folded otherwise, in the last bits."""
    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    yield
    tf.config.optimizer.set_experimental_options({"constant_folding": True})
