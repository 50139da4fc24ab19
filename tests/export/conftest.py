"""Runs the studies of `tests/stored/small_models.py`, below a directory of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import Runner


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)
