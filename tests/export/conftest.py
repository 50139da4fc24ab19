"""Runs the studies of `tests/stored/small_models.py`, below a directory of the test's own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_models import Runner


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Trials collect what they have made; what was there before need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
