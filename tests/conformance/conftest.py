"""Every database that a repository can be kept in, as fixtures.

A test has the database to itself, without a row. It is emptied after each and stays open: an engine
that is new has every statement to compile again, which costs more than most tests do.
"""

import contextlib
import sqlite3
from dataclasses import dataclass

import pytest
import sqlalchemy as sa
from databases import place_database, postgresql_database
from stored_study import ROW

from sweeper.db.database import Database
from sweeper.db.repository import Repository

PATIENCE = 30.0


@dataclass(frozen=True)
class OneFile:
    """A file of SQLite's; ``template`` is a connection to the same without a row."""

    opened: Database
    template: sqlite3.Connection

    def empty(self):
        with contextlib.closing(sqlite3.connect(str(self.opened.url.database))) as connection:
            self.template.backup(connection)


@dataclass(frozen=True)
class OneDatabase:
    """A database on the server."""

    opened: Database
    inside: sa.Engine
    tables: tuple[str, ...]

    def empty(self):
        """Leave no connection either, whoever has it."""
        self.opened.close()
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        ends = f"PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}; "
        rows = "".join(f'DELETE FROM "{table}"; ' for table in reversed(self.tables))
        numbers = "PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"
        with self.inside.begin() as connection:
            connection.exec_driver_sql(f"DO $$ BEGIN {ends}{rows}{numbers}; END $$")


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory):
    path, empty = (tmp_path_factory.mktemp(name) / "sweeper.db" for name in ("kept", "empty"))
    place_database(path)
    place_database(empty)
    with (
        contextlib.closing(sqlite3.connect(empty)) as template,
        Database.open(f"sqlite:///{path}", create=True, patience=PATIENCE) as opened,
    ):
        yield OneFile(opened, template)


_VERSIONS = {"alembic_version", "sweeper_alembic_version", "version_info"}
"""Tables that are filled when a database is created."""


@pytest.fixture(scope="session")
def postgresql():
    """Give a database that is dropped at the end of the tests."""
    with postgresql_database() as server:
        # What a server would lose that crashes is not what these tests are about.
        server.run(f"ALTER DATABASE {server.name} SET synchronous_commit = off")
        inside = sa.create_engine(server.url)
        try:
            with Database.open(server.url, create=True, patience=PATIENCE) as opened:
                schema = sa.MetaData()
                schema.reflect(inside)
                tables = tuple(t.name for t in schema.sorted_tables if t.name not in _VERSIONS)
                yield OneDatabase(opened, inside, tables)
        finally:
            inside.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """Give a database without a study."""
    backend = request.getfixturevalue(request.param)
    yield backend.opened
    backend.empty()


@pytest.fixture
def url(database):
    return database.url_from_anywhere


@pytest.fixture
def repository(database):
    return Repository(database)


@pytest.fixture
def digits(repository):
    """Give the repository with the study `digits`, of which nothing has begun."""
    repository.create_or_open(ROW)
    return repository
