"""Runs studies in this process, below a directory of the test's own."""

import pytest
from small_models import Runner
from trainings import unoptimized


@pytest.fixture
def run(tmp_path):
    return Runner(tmp_path)


@pytest.fixture(scope="module")
def without_constant_folding():
    """Single steps and steps in a loop of the graph are folded otherwise, in the last bits."""
    with unoptimized("constant_folding"):
        yield
