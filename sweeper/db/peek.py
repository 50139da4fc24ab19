"""Look at a database before SQLAlchemy is imported, which takes half a second."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_SQLITE = "sqlite:///"
_FINISHED = """
SELECT target <= (SELECT count(*) FROM sweeper_trials WHERE study_id = s.id AND result IS NOT NULL)
FROM sweeper_studies AS s WHERE name = ?
"""


def may_be_finished(storage: str, study: str) -> bool:
    """Return whether it is worth opening a repository to see if every trial of ``study`` has a result."""
    rows = _read(storage, _FINISHED, study)
    return rows is None or any(is_finished for (is_finished,) in rows)


def stored_names(storage: str) -> tuple[str, ...] | None:
    """Return the names of the studies; None if only a repository can read them."""
    rows = _read(storage, "SELECT name FROM sweeper_studies ORDER BY id")
    return None if rows is None else tuple(name for (name,) in rows)


def _read(storage: str, statement: str, *values: object) -> list[Any] | None:
    """Return the rows of a SQLite file, none if it cannot be read; None for another database."""
    if not storage.startswith(_SQLITE):
        return None
    file = Path(storage.removeprefix(_SQLITE).partition("?")[0]).absolute()
    if not file.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", timeout=0.2, uri=True)) as opened:
            return opened.execute(statement, values).fetchall()
    except sqlite3.Error:
        # Opening the database raises the error with its reason.
        return []
