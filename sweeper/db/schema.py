"""Schema version of the database: check, creation and upgrade of tables.

Optuna creates its own tables; sweeper's come from migrations with a separate version table, because
Optuna's `alembic_version` may only contain Optuna's revision. Opening costs one select: Alembic is
imported only for changes. Creation is serialized (a lock on the directory, an advisory lock on
PostgreSQL), because neither Optuna's creation nor the switch to WAL works in two processes at once.
An interrupted creation is finished by the next process that opens the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DatabaseError

from sweeper.db.faults import is_missing_table
from sweeper.errors import DatabaseUnavailableError, DatabaseVersionError
from sweeper.support.shown import shown_url

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

VERSION_TABLE = "sweeper_alembic_version"
REVISIONS = ("0001",)
"""Every revision of sweeper's tables, oldest first; the last is this version's."""

_OPTUNA_REVISION = "v3.2.0.a"
_CREATION_LOCK = 0x73776565706572
"""Key of PostgreSQL's advisory lock: "sweeper" in ASCII."""

_VERSIONS = sa.text(
    "SELECT (SELECT max(version_num) FROM sweeper_alembic_version),"
    " (SELECT max(version_num) FROM alembic_version)"
)


def ensure(engine: Engine, writing: Engine, url: URL, *, create: bool) -> None:
    """Check the tables' versions, and with ``create`` create the tables that are missing."""
    versions = _versions(engine)
    if versions is None and create:
        with _alone(engine, url):
            _create(engine, writing, url)
        versions = _versions(engine)
    if versions is None:
        raise DatabaseUnavailableError(
            f"{shown_url(url)} holds no studies of sweeper's; run a study first "
            "(sweeper run FILE), or name another database (--storage, SWEEPER_STORAGE)"
        )
    revision, optuna_revision = versions
    _check_revision(revision, url)
    if revision != REVISIONS[-1]:
        raise DatabaseVersionError(
            f"{shown_url(url)} has tables of revision {revision}; this version of sweeper needs "
            f"{REVISIONS[-1]}. Stop the workers, then run: sweeper db upgrade"
        )
    if optuna_revision != _OPTUNA_REVISION:
        optuna_storage(url, create=False).engine.dispose()


def upgrade(writing: Engine, url: URL) -> tuple[str, str]:
    """Run the missing migrations; return the old and the new revision."""
    versions = _versions(writing)
    if versions is None:
        raise DatabaseUnavailableError(
            f"{shown_url(url)} holds no studies of sweeper's; there is nothing to upgrade"
        )
    revision = versions[0]
    _check_revision(revision, url)
    with writing.begin() as connection:
        _migrate(connection)
    return revision, REVISIONS[-1]


def optuna_storage(url: URL, *, create: bool) -> RDBStorage:
    """Return Optuna's storage for the database at ``url``, and create its tables if requested."""
    import optuna

    address = url.render_as_string(hide_password=False)
    arguments = {"timeout": 30} if url.get_backend_name() == "sqlite" else {}
    try:
        return optuna.storages.RDBStorage(
            # Optuna formats the URL as a template, and a password may have braces.
            address.replace("{", "{{").replace("}", "}}"),
            engine_kwargs={"connect_args": arguments},
            skip_table_creation=not create,
        )
    except RuntimeError as error:
        raise DatabaseVersionError(
            f"{shown_url(url)} was written by another version of Optuna than the installed "
            f"{optuna.__version__}: {error}"
        ) from error


def unhurried(connection: Connection) -> None:
    """Disable the idle timeout of this transaction, which waits for other work."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))


def _versions(engine: Engine) -> tuple[str, str | None] | None:
    try:
        with engine.connect() as connection:
            revision, optuna_revision = connection.execute(_VERSIONS).one()
    except DatabaseError as error:
        if is_missing_table(error):
            return None
        raise
    return None if revision is None else (str(revision), optuna_revision)


def _check_revision(revision: str, url: URL) -> None:
    if revision not in REVISIONS:
        raise DatabaseVersionError(
            f"{shown_url(url)} has tables of revision {revision}, which this version of "
            f"sweeper does not know (its newest is {REVISIONS[-1]}); "
            "install the newer sweeper that wrote it, or use another database"
        )


def _create(engine: Engine, writing: Engine, url: URL) -> None:
    # Another process may have created them while this one waited for the lock.
    if _versions(engine) is not None:
        return
    if engine.dialect.name == "sqlite":
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
        finally:
            raw.close()
    storage = optuna_storage(url, create=True)
    storage.remove_session()
    storage.engine.dispose()
    with writing.begin() as connection:
        _migrate(connection)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("sweeper.db") / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    unhurried(connection)
    command.upgrade(config, "head")


@contextlib.contextmanager
def _alone(engine: Engine, url: URL) -> Iterator[None]:
    """Context manager for the creation lock, which the system releases if this process dies."""
    if engine.dialect.name == "postgresql":
        with engine.begin() as connection:
            unhurried(connection)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            yield
        return
    directory = os.open(Path(str(url.database)).parent, os.O_RDONLY)
    try:
        # SQLite itself does not keep two processes from creating the tables of Optuna at once.
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
