"""Database connections and transactions: each state change is one transaction.

SQLite runs in WAL mode, in which readers and one writer run in parallel. A writing transaction
starts with BEGIN IMMEDIATE: if it read first and another transaction wrote in between, SQLite would
fail it without waiting. On PostgreSQL the first statement of a writing transaction locks a row
instead, and reading ones see one snapshot (REPEATABLE READ). Writers of one process queue at a lock
of that process, because SQLite waits by sleeping and retrying. No writer waits longer than its
patience, and a writer that waits for another process releases the lock from time to time.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sweeper.db import faults, schema
from sweeper.errors import DatabaseUnavailableError
from sweeper.support.calling import retrying
from sweeper.support.installation import install_command
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

T = TypeVar("T")

_BUSY_SECONDS = 30
_LONGEST_TRY = 2.0
"""Seconds for which one try waits for other processes, before this process's next writer may try."""

_KEPT_CONNECTIONS = 2
_MOST_CONNECTIONS = 8
"""Maximum number of connections of one process to a server; transactions take milliseconds."""

_LONGEST_IDLE_MS = 5000
"""Milliseconds after which the server ends an idle transaction, which may hold locks."""

_POSTGRESQL_CONNECTION = {
    "connect_timeout": 10,
    # A server that is suddenly unreachable is noticed after about 20 s, not after hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class Database(contextlib.AbstractContextManager["Database"]):
    """An open database, safe for several threads; a forked child must open its own.

    Temporary faults are retried for ``patience`` seconds.
    """

    def __init__(self, url: URL, patience: float) -> None:
        self.url = url
        self._patience = patience
        self._file: tuple[Path, os.stat_result] | None = None
        engine = _engine(url, patience)
        self._engine = engine
        self._reading: Engine
        self._writing: Engine
        if engine.dialect.name == "sqlite":
            self._reading = engine
            self._writing = engine.execution_options(sweeper_writes=True)
            # SQLite waits by sleeping and retrying, so writers of this process queue here.
            self._turn: threading.Lock | None = threading.Lock()
        else:
            self._reading = engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            self._writing = engine
            self._turn = None

    @classmethod
    def open(cls, url: str, *, create: bool, patience: float = 60.0) -> Self:
        """Open the database at ``url``.

        Args:
            url: ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``.
            create: Whether to create missing files, directories and tables.
            patience: Seconds for which temporary faults are retried; 60 by default.

        Raises:
            DatabaseUnavailableError: There is none, it cannot be reached, or it is not a database.
            DatabaseVersionError: Another version of sweeper or Optuna wrote it.
        """
        parsed = faults.parse_url(url)
        _prepare_directory(parsed, create=create)
        database = cls(parsed, patience)
        try:
            with _as_unavailable(parsed, "be opened"):
                schema.ensure(database._engine, database._writing, parsed, create=create)
            if database.in_file:
                path = Path(str(parsed.database)).absolute()
                database._file = (path, path.stat())
        except BaseException:
            database.close()
            raise
        return database

    @classmethod
    def upgrade(cls, url: str) -> tuple[str, str]:
        """Upgrade an older database's tables to this version (``sweeper db upgrade``).

        Returns:
            The revision found and the revision that it has now.

        Raises:
            DatabaseUnavailableError: There is none, or it cannot be reached.
            DatabaseVersionError: It is newer than this version of sweeper.
        """
        parsed = faults.parse_url(url)
        _prepare_directory(parsed, create=False)
        with cls(parsed, patience=60.0) as database, _as_unavailable(parsed, "be opened"):
            return schema.upgrade(database._writing, parsed)

    @property
    def in_file(self) -> bool:
        """Return whether the database is a file, which only processes of one machine may share."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> str:
        """Return the absolute path of the database's file; empty if it is none."""
        return str(Path(str(self.url.database)).absolute()) if self.in_file else ""

    @property
    def url_from_anywhere(self) -> str:
        """Return the URL with its password, which must not be displayed, and an absolute path."""
        url = self.url.set(database=self.file) if self.in_file else self.url
        return url.render_as_string(hide_password=False)

    def __repr__(self) -> str:
        return f"Database({shown_url(self.url)!r})"

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one read-only transaction with one snapshot."""
        return self._transact(self._reading, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction, which is committed unless ``work`` raises an error.

        ``work`` is run again after a temporary fault, so its only effects must be in the database.
        After a connection was lost during the commit, it is unknown whether the commit was made:
        ``work`` has to recognize its earlier writes.

        Raises:
            DatabaseUnavailableError: Temporary faults lasted longer than the patience.
        """
        return self._transact(self._writing, work)

    def with_patience(self, seconds: float) -> Self:
        """Return the same database and connections for a caller that waits at most ``seconds``."""
        other = copy.copy(self)
        other._patience = seconds
        return other

    def optuna_storage(self) -> RDBStorage:
        return schema.optuna_storage(self.url, create=False)

    def close(self) -> None:
        """Close every unused connection."""
        self._engine.dispose()

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _transact(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        if self._file is not None:
            faults.check_file(*self._file, self.url)
        turn = self._turn if engine is self._writing else None
        deadline = time.monotonic() + self._patience

        def transaction() -> T:
            with self._has(turn, deadline), engine.connect() as connection:
                # SQLite waits in this transaction for other processes, at most until the deadline.
                seconds = min(_LONGEST_TRY, max(0.0, deadline - time.monotonic()))
                with connection.execution_options(sweeper_busy_ms=int(1000 * seconds)).begin():
                    return work(connection)

        with _as_unavailable(self.url, "be used"):
            return retrying(
                transaction,
                faults.is_passing,
                patience=self._patience,
                first_pause=_FIRST_PAUSE,
                longest_pause=_LONGEST_PAUSE,
            )

    @contextlib.contextmanager
    def _has(self, turn: threading.Lock | None, deadline: float) -> Iterator[None]:
        if turn is None:
            yield
            return
        if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise PoolTimeoutError(
                f"another writer of this process has held it for {self._patience:g} s"
            )
        try:
            yield
        finally:
            turn.release()


@contextlib.contextmanager
def _as_unavailable(url: URL, doing: str) -> Iterator[None]:
    """Context manager that converts faults of the database to `DatabaseUnavailableError`."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError) as error:
        if faults.is_unavailable(error):
            raise faults.unavailable(url, error, doing) from error
        raise


def _engine(url: URL, patience: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        busy = min(patience, _BUSY_SECONDS)
        uri = faults.read_only_uri(Path(str(url.database)))
        opened = url if uri is None else sa.make_url(f"sqlite:///{uri}&uri=true")
        engine = sa.create_engine(opened, max_overflow=-1, connect_args={"timeout": busy})
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        engine = sa.create_engine(
            url,
            pool_size=_KEPT_CONNECTIONS,
            max_overflow=_MOST_CONNECTIONS - _KEPT_CONNECTIONS,
            pool_timeout=_BUSY_SECONDS,
            connect_args=_POSTGRESQL_CONNECTION,
        )
    except ModuleNotFoundError as error:
        raise DatabaseUnavailableError(
            f"{shown_url(url)} needs the module {error.name!r}; "
            f"install it with: {install_command('postgresql')}"
        ) from error
    event.listen(engine, "connect", _configure_postgresql)
    return engine


def _configure_postgresql(connection: Any, _record: object) -> None:
    connection.execute(f"SET idle_in_transaction_session_timeout = {_LONGEST_IDLE_MS}")
    connection.commit()


def _configure_sqlite(connection: Any, _record: object) -> None:
    # Otherwise the driver starts transactions itself, without IMMEDIATE.
    connection.isolation_level = None
    cursor = connection.cursor()
    # In WAL mode a power failure may then undo the last commits, but not damage the file.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes = options.get("sweeper_writes", False)
    if "sweeper_busy_ms" in options:
        busy = options["sweeper_busy_ms"]
        if connection.info.get("sweeper_busy_ms") != busy:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={busy}")
            connection.info["sweeper_busy_ms"] = busy
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_directory(url: URL, *, create: bool) -> None:
    """Create or check the directory of a SQLite file, before SQLite creates an empty file."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if path.is_dir():
        raise DatabaseUnavailableError(
            f"{shown_url(url)} is a directory; expected a file's path (--storage)"
        )
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise faults.unavailable(url, error, "be created") from error
    elif not path.exists():
        raise faults.missing(url)
