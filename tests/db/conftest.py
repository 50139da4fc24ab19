"""An empty SQLite database to copy, which is faster than creating one a test."""

import shutil
from pathlib import Path

import pytest
from contending import processes
from databases import empty_database

__all__ = ["processes"]


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory):
    """A database without a study; not to be written to."""
    path = tmp_path_factory.mktemp("empty") / "sweeper.db"
    path.write_bytes(empty_database())
    return path


@pytest.fixture
def file(empty_file, tmp_path):
    """A test's own database, without a study, in its ``tmp_path``."""
    return Path(shutil.copy(empty_file, tmp_path / "sweeper.db"))
