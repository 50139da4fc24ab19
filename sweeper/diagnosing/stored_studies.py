"""State of the database: whether it opens, is intact, has a correct clock, and has abandoned trials."""

from __future__ import annotations

from collections.abc import Iterator

from sweeper.errors import DatabaseUnavailableError, DatabaseVersionError
from sweeper.records.diagnoses import Finding
from sweeper.report.formats import time_text
from sweeper.settings import Settings
from sweeper.storage.database import Database
from sweeper.storage.health import DatabaseHealth, read_health
from sweeper.support.shown import shown_url

_PATIENCE = 10.0
_CLOCKS_APART = 5.0
"""Seconds by which clocks may differ without a word: leases are on the database's alone."""


def database_findings(settings: Settings) -> Iterator[Finding]:
    """Look at the database of ``settings``, without making one."""
    url = shown_url(settings.storage)
    try:
        with Database.open(settings.storage, create=False, patience=_PATIENCE) as database:
            health = read_health(database)
            in_file = database.in_file
    except DatabaseVersionError as error:
        yield _database("broken", str(error), "tables of this version's", "sweeper db upgrade")
        return
    except DatabaseUnavailableError as error:
        text = str(error)
        absent = text.startswith("there is no database") or "holds no studies" in text
        yield _database(
            "note" if absent else "broken",
            text,
            "one that can be opened; the first run makes one",
            "sweeper init" if absent else "sweeper ls, once it is mended, shows what is in it",
        )
        return
    held = f"{health.studies} {'study' if health.studies == 1 else 'studies'}"
    yield _database("ok", f"{url}: {held}, revision {health.revision}", "one that can be opened")
    if in_file:
        yield from _file(health)
    yield _clock(health.clock)
    yield _leases(health, settings)


def _database(level: str, seen: str, expected: str, advice: str = "") -> Finding:
    return Finding("database", "database", level, seen, expected, advice)  # type: ignore[arg-type]


def _file(health: DatabaseHealth) -> Iterator[Finding]:
    whole = not health.faults
    yield Finding(
        "database",
        "SQLite",
        "ok" if whole else "broken",
        "its quick check finds it whole" if whole else "; ".join(health.faults),
        "a file that is whole",
        "" if whole else "stop the workers and restore a copy; `sqlite3 FILE .recover` saves rows",
    )
    wal = bool(health.write_ahead)
    yield Finding(
        "database",
        "journal",
        "ok" if wal else "note",
        "wal" if wal else "a rollback journal",
        "wal, in which readers hold up no worker",
        "" if wal else 'sqlite3 FILE "PRAGMA journal_mode=WAL", while nobody uses it',
    )


def _clock(ahead: float) -> Finding:
    together = abs(ahead) < _CLOCKS_APART
    way = "ahead of" if ahead > 0 else "behind"
    return Finding(
        "database",
        "clock",
        "ok" if together else "note",
        "as this machine's" if together else f"{time_text(abs(ahead))} {way} this machine's",
        f"within {_CLOCKS_APART:g} s; leases go by the database's alone",
        "" if together else "set both by NTP, or times in reports are apart",
    )


def _leases(health: DatabaseHealth, settings: Settings) -> Finding:
    if not health.lost:
        seen = f"{health.running} running, each with its worker"
        return Finding("database", "leases", "ok", seen, "no trial open whose worker is gone")
    study = health.lost[0].rpartition(" ")[0]
    return Finding(
        "database",
        "leases",
        "note",
        f"left open by workers that are gone: {', '.join(health.lost[:5])}"
        f"{' and more' * (len(health.lost) > 5)}",
        "no trial open whose worker is gone",
        f"{settings.command('resume', study)}: they go on from their checkpoints",
    )
