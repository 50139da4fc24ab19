"""The tutorial, typed from its first block to its last in an empty directory, does what it says.

By default all but the blocks marked as long, still in order; with them where pages are asked for.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from doc_blocks import DOCS
from doc_runs import run_pages, runnable

PAGE = "docs/tutorial/index.md"


@pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=pytest.mark.pages)], ids=["but-the-check", "whole"]
)
def test_a_new_user_gets_a_resumed_and_verified_sweep(tmp_path: Path, long: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    blocks = runnable(DOCS / "tutorial" / "index.md", long=long)
    assert run_pages({PAGE: home}, tmp_path, {PAGE: blocks}) == {}
    database = sqlite3.connect(home / "first-sweep" / "runs" / "sweeper.db")
    results = database.execute("SELECT result FROM sweeper_trials").fetchall()
    assert results == [("complete",)] * 5
    went_on = "SELECT count(*) FROM sweeper_attempts WHERE number > 1 AND start_step > 0"
    assert database.execute(went_on).fetchone()[0] >= 1, "the kill came between the checkpoints"
    verdicts = database.execute("SELECT mode, verdict FROM sweeper_verdicts ORDER BY id").fetchall()
    assert verdicts == [("replay", "holds"), ("interrupt", "holds")]
    database.close()
