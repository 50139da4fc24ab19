"""Health of a database: its integrity check, its mode, its clock, and its active workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from sweeper.db.database import Database
from sweeper.db.leases import is_lost, open_attempts
from sweeper.db.schema import REVISIONS
from sweeper.db.tables import Study, Trial, UtcNow, aware


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    """Health of a database, as it reports it.

    Attributes:
        revision: Revision of its tables.
        write_ahead: Whether SQLite is in WAL mode, in which readers do not block writers; None for
            PostgreSQL.
        faults: Result of SQLite's quick check; empty if undamaged, and for PostgreSQL.
        clock: Seconds by which its clock is ahead of this machine's, corrected by half of the round
            trip.
        studies: Number of studies.
        running: Number of trials with a live worker.
        lost: Open trials of workers that are gone, as ``STUDY N``.
    """

    revision: str
    write_ahead: bool | None
    faults: tuple[str, ...]
    clock: float
    studies: int
    running: int
    lost: tuple[str, ...]


def read_health(database: Database) -> DatabaseHealth:
    """Return the health of an open database, without writing to it.

    Raises:
        DatabaseUnavailableError: It cannot be read.
    """
    return database.read(lambda connection: _read(connection, in_file=database.in_file))


def _read(connection: Connection, *, in_file: bool) -> DatabaseHealth:
    faults: tuple[str, ...] = ()
    write_ahead = None
    if in_file:
        write_ahead = connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        rows = connection.exec_driver_sql("PRAGMA quick_check(5)").scalars()
        faults = tuple(str(row) for row in rows if row != "ok")
    asked = time.time()
    moment: datetime | str = connection.execute(sa.select(UtcNow())).scalar_one()
    answered = time.time()
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    here = datetime.fromtimestamp((asked + answered) / 2, UTC)
    opened = connection.execute(
        open_attempts(Study.name.label("study")).join(Study, Study.id == Trial.study_id)
    ).all()
    lost = tuple(f"{row.study} {row.trial}" for row in opened if is_lost(row))
    return DatabaseHealth(
        revision=REVISIONS[-1],
        write_ahead=write_ahead,
        faults=faults,
        clock=(aware(moment) - here).total_seconds(),
        studies=int(connection.scalar(sa.select(sa.func.count()).select_from(Study)) or 0),
        running=len(opened) - len(lost),
        lost=lost,
    )
