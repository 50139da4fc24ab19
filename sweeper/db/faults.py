"""Temporary and permanent faults of a database, and states of a SQLite file: replaced, read-only.

Only a temporary fault is retried: the database was busy, aborted the transaction because of a
deadlock, or dropped the connection.

A reader of a database in WAL mode also writes: it makes a shared-memory file beside the database.
Without permission for that, the URI has to say whether a writer has made these files, or the
database is immutable.
"""

import os
import shlex
import sqlite3
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sweeper.errors import DatabaseUnavailableError
from sweeper.support.shown import shown_url, without_secrets


def check_file(path: Path, opened: os.stat_result, url: URL) -> None:
    """Raise `DatabaseUnavailableError` if a SQLite file was removed or replaced since it was opened.

    Writes to a removed file raise no error, and are lost when the last process closes it.
    """
    try:
        if os.path.samestat(path.stat(), opened):
            return
        event = "was replaced by another file"
    except (FileNotFoundError, NotADirectoryError):
        event = "was removed"
    except OSError:
        # SQLite will report what is wrong with the file.
        return
    raise DatabaseUnavailableError(
        f"{shown_url(url)} {event} while it was in use, so nothing more can be stored; "
        "checkpoints are not affected. Put the file back, with its -wal file if there is "
        "one, and resume"
    )


def read_only_uri(file: Path) -> str | None:
    """Return the read-only URI of ``file``; None if the file may be written or created.

    A file without a writer is read as immutable. If a writer starts at that moment, the result may
    mix two states.
    """
    directory = file.parent
    if not file.exists() or (os.access(file, os.W_OK) and os.access(directory, os.W_OK)):
        return None
    log, index = (file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm"))
    uri = file.absolute().as_uri()
    if index.exists() or (log.exists() and log.stat().st_size):
        return f"{uri}?mode=ro"
    return f"{uri}?mode=ro&immutable=1"


_SQLITE_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_POSTGRESQL_PASSING = (
    "08",  # the connection: refused, reset, cut off
    "25P03",  # idle in a transaction for too long: this process was stopped
    "40001",
    "40P01",
    "53300",  # too many connections
    "55P03",
    "57P01",  # the server is shut down, crashed, or starts
    "57P02",
    "57P03",
    "57P05",
)
_POSTGRESQL_LASTING = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "no password supplied",
    "permission denied",
)
"""Messages of a server that refuses a connection; such errors have no SQLSTATE."""

_POSTGRESQL_NO_TABLE = "42P01"


def parse_url(text: str) -> URL:
    """Return the URL of a SQLite file or a PostgreSQL database; refuse any other."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # SQLAlchemy parses the text after a host's colon as a port; its error quotes that text.
        port = " (its port is no number)" if isinstance(error, ValueError) else ""
        raise DatabaseUnavailableError(
            f"{shown_url(text)!r} is not a database URL{port}; expected sqlite:///PATH or "
            "postgresql://USER@HOST:PORT/DATABASE (--storage, SWEEPER_STORAGE)"
        ) from None
    if url.drivername == "postgres":  # as libpq and hosting services write it
        url = url.set(drivername="postgresql")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise DatabaseUnavailableError(
            f"{shown_url(url)} is a {url.get_backend_name()} database; "
            "sweeper keeps studies in sqlite:/// or postgresql://"
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise DatabaseUnavailableError(
            f"{shown_url(url)} names no file, and a database in memory is lost with its "
            "process; use sqlite:///PATH"
        )
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    return url


def is_passing(error: BaseException) -> bool:
    """Return whether the same transaction may succeed when it is run again."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, PoolTimeoutError)
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in _SQLITE_PASSING
    state = _sqlstate(error)
    if state is None:
        refused = any(reason in str(error.orig) for reason in _POSTGRESQL_LASTING)
        return isinstance(error, OperationalError) and not refused
    return state.startswith(_POSTGRESQL_PASSING)


def is_unavailable(error: DBAPIError | PoolTimeoutError) -> bool:
    """Return whether the database failed, not the statement."""
    if is_passing(error):
        return True
    operational = isinstance(error, OperationalError)
    if isinstance(original := getattr(error, "orig", None), sqlite3.Error):
        code = _sqlite_code(original)
        failed = operational and code not in (None, sqlite3.SQLITE_ERROR)
        return failed or code in _SQLITE_DAMAGED
    return operational


def is_missing_table(error: DatabaseError) -> bool:
    """Return whether the statement named a table that does not exist."""
    if isinstance(error.orig, sqlite3.OperationalError):
        return str(error.orig).startswith("no such table")
    return _sqlstate(error) == _POSTGRESQL_NO_TABLE


def unavailable(url: URL, error: BaseException, doing: str = "be used") -> DatabaseUnavailableError:
    """Return the error to raise: one sentence that names the URL without its password."""
    original = error.orig if isinstance(error, DBAPIError) else error
    text = " ".join(str(original).split()) or type(original).__name__
    reason = without_secrets(text, url.render_as_string(hide_password=False))
    failure = DatabaseUnavailableError(
        f"the database {shown_url(url)} cannot {doing}: {reason}; "
        "check --storage and --runs-dir, the file's permissions or the server"
    )
    failure.passing = is_passing(error)
    return failure


def missing(url: URL) -> DatabaseUnavailableError:
    """Return the error for a missing SQLite file, with the path of a similar one if there is one."""
    path = Path(str(url.database))
    here = Path.cwd()
    elsewhere = [] if path.is_absolute() else [d for d in here.parents if (d / path).is_file()]
    if not elsewhere and not path.is_absolute():
        elsewhere = [d.absolute() for d in _directories(here) if (d / path).is_file()]
    if elsewhere:
        hint = (
            f"there is one in {elsewhere[0]}: go there (cd {shlex.quote(str(elsewhere[0]))}), or "
            "name it (--storage, SWEEPER_STORAGE)"
        )
    else:
        hint = (
            "run a study first (sweeper run FILE), or name its database "
            "(--storage, SWEEPER_STORAGE)"
        )
    return DatabaseUnavailableError(f"there is no database at {shown_url(url)}; {hint}")


def _directories(here: Path) -> list[Path]:
    try:
        return sorted(path for path in here.iterdir() if path.is_dir())
    except OSError:
        return []


def _sqlite_code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _sqlstate(error: DBAPIError) -> str | None:
    state: str | None = getattr(error.orig, "sqlstate", None)
    return state
