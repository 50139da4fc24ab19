"""The database as the dashboard reads it: opened when it is first needed, and kept open."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweeper.storage.repository import Repository

_PATIENCE = 10.0
"""Seconds that a page waits for a busy database: someone sits before it."""


class OpenedRepository:
    """Gives the repository of a database. Threads may share it.

    A database may hold Optuna's studies alone, and be given sweeper's while the dashboard runs.

    Args:
        storage: SQLAlchemy URL of the database.
    """

    def __init__(self, storage: str) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._opened: Repository | None = None

    def __call__(self) -> Repository:
        """Return it.

        Raises:
            DatabaseUnavailableError: There is no study of sweeper's in it.
            DatabaseVersionError: Another version wrote it.
        """
        from sweeper.storage.database import Database
        from sweeper.storage.repository import Repository

        with self._lock:
            if self._opened is None:
                database = Database.open(self._storage, create=False, patience=_PATIENCE)
                self._opened = Repository(database)
            return self._opened

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            if self._opened is not None:
                self._opened.database.close()
                self._opened = None
