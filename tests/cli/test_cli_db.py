"""``db copy`` carries a laptop's studies to another database, and says what it did."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow


def test_a_copied_database_has_the_same_studies_and_is_copied_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("laptop", "cluster"))
    with Database.open(source, create=True) as database:
        Repository(database).create_or_open(
            StudyRow("digits", {"epochs": 3}, "loss", "minimize", 4, None, 0)
        )
    assert main(["db", "copy", source, target]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("studies: 1, trials: 0; copied ")
    assert f"export SWEEPER_STORAGE={target}" in printed.err
    with Database.open(target, create=False) as database:
        assert Repository(database).study_names() == ("digits",)
    assert main(["db", "copy", source, target]) == 1
    assert (
        "already contains studies (digits); copy into an empty database" in capsys.readouterr().err
    )
    assert main(["db", "copy", f"sqlite:///{tmp_path / 'none.db'}", target]) == 1
    assert "there is no database at" in capsys.readouterr().err
