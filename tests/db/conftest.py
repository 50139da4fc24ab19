"""A test's own SQLite database, and processes that race for one."""

import pytest
from contending import processes
from databases import place_database

__all__ = ["processes"]


@pytest.fixture
def file(tmp_path):
    """A test's own database, without a study, in its ``tmp_path``."""
    place_database(tmp_path / "sweeper.db")
    return tmp_path / "sweeper.db"
