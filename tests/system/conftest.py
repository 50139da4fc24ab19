"""Studies that several modules compare with, each run whole once."""

from __future__ import annotations

from pathlib import Path

import pytest
from interruptions import INTERRUPTED_STUDY, WholeRun
from pruned_study import PRUNED_STUDY
from sweeps import sweep


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    directory = tmp_path_factory.mktemp("whole")
    return WholeRun(INTERRUPTED_STUDY.write(directory / "interrupted.py"), directory / "runs")


@pytest.fixture(scope="session")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the file of the pruned study, and what one worker made of it in ``one``."""
    directory = tmp_path_factory.mktemp("pruned")
    PRUNED_STUDY.write(directory / "pruned.py")
    sweep(directory / "pruned.py", directory / "one", workers=1)
    return directory
