"""What the tests of checkpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.checkpoint.store import CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")
