"""The reading verbs against the real database, which they never create."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_fakes import Call

from sweeper.db.database import Database


@pytest.fixture
def empty_database(bare_directory: Path) -> Path:
    """Make the default database, without a study in it."""
    (bare_directory / "runs").mkdir()
    Database.open("sqlite:///runs/sweeper.db", create=True).close()
    return bare_directory / "runs" / "sweeper.db"


def test_an_empty_database_lists_no_studies(call: Call, empty_database: Path) -> None:
    assert empty_database.exists()
    assert call("ls", "--json").json == []
    assert "sweeper run FILE" in call("ls").out


@pytest.mark.parametrize(
    "words", [("status", "nope"), ("show", "nope", "0"), ("best", "nope"), ("logs", "nope", "0")]
)
def test_an_unknown_study_is_named_and_exits_2(
    call: Call, empty_database: Path, words: tuple[str, ...]
) -> None:
    del empty_database
    answer = call(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("nope") == 1


@pytest.mark.parametrize(
    "words", [("ls",), ("status", "s"), ("show", "s", "0"), ("best", "s"), ("dashboard",)]
)
def test_reading_makes_no_database(
    call: Call, bare_directory: Path, words: tuple[str, ...]
) -> None:
    answer = call(*words)
    assert (answer.code, answer.out) == (1, "")
    assert "sweeper.db" in answer.err
    assert list(bare_directory.iterdir()) == []


def test_runs_dir_and_storage_lead_to_other_databases(
    call: Call, empty_database: Path, bare_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_database.parent.rename(bare_directory / "moved")
    assert call("ls").code == 1
    assert call("ls", "--runs-dir", "moved", "--json").json == []
    assert call("ls", "--storage", "sqlite:///moved/sweeper.db", "--json").json == []
    monkeypatch.setenv("SWEEPER_RUNS_DIR", "moved")
    assert call("ls", "--json").json == []
