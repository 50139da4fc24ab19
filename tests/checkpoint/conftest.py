"""What the tests of checkpoints share."""

import pytest
from checkpoint_faults import snapshot

from sweeper.checkpoint.store import CheckpointStore


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def second(store):
    """Give the path of the second of two checkpoints."""
    store.commit(snapshot(1))
    return store.commit(snapshot(2)).path
