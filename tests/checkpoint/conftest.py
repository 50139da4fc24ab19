"""What the tests of checkpoints share."""

import pytest

from sweeper.checkpoint.store import CheckpointStore


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")
