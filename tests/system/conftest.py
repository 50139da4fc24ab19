"""The study to be interrupted, run whole once; and when chaos runs."""

from __future__ import annotations

import pytest
from interruptions import INTERRUPTED_STUDY, WholeRun


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave chaos out unless markers are asked for by name."""
    if config.option.markexpr:
        return
    chaos = [item for item in items if item.get_closest_marker("chaos")]
    if chaos:
        config.hook.pytest_deselected(items=chaos)
        items[:] = [item for item in items if item not in chaos]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    directory = tmp_path_factory.mktemp("whole")
    return WholeRun(INTERRUPTED_STUDY.write(directory / "interrupted.py"), directory / "runs")
