"""Runs studies in this process, below a directory of the test's own."""

import pytest
import tensorflow as tf
from small_models import Runner


@pytest.fixture
def run(tmp_path):
    return Runner(tmp_path)


@pytest.fixture(scope="module")
def without_constant_folding():
    """Single steps and steps in a loop of the graph are folded otherwise, in the last bits."""
    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    yield
    tf.config.optimizer.set_experimental_options({"constant_folding": True})
