"""Every database that a repository can be kept in, as fixtures."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from sweeper.storage.database import Database
from sweeper.storage.repository import Repository

POSTGRES = "SWEEPER_TEST_POSTGRES"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an empty SQLite database to copy, which is faster than creating one a test."""
    path = tmp_path_factory.mktemp("template") / "sweeper.db"
    Database.open(f"sqlite:///{path}", create=True).close()
    return path


@dataclass(frozen=True)
class OneDatabase:
    """A database on the server that every test is given empty: deleting a test's rows is faster than
    creating a database for it.

    Attributes:
        server: An engine on the server.
        inside: An engine on the database.
        tables: Those that a test can fill, each before those that refer to it.
    """

    server: sa.Engine
    inside: sa.Engine
    tables: tuple[str, ...]

    @property
    def url(self) -> str:
        return self.inside.url.render_as_string(hide_password=False)

    def empty(self) -> None:
        """Leave no connection, no row and no number that was given out."""
        others = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :n"
        )
        with self.server.connect() as connection:
            connection.execute(others, {"n": self.inside.url.database})
        rows = "".join(f'DELETE FROM "{table}"; ' for table in reversed(self.tables))
        numbers = "PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"
        with self.inside.begin() as connection:
            connection.exec_driver_sql(f"DO $$ BEGIN {rows}{numbers}; END $$")


_VERSIONS = {"alembic_version", "sweeper_alembic_version", "version_info"}
"""Tables that are filled when a database is created."""


@pytest.fixture(scope="session")
def postgresql_database() -> Iterator[OneDatabase]:
    """Give a database that is dropped at the end of the tests."""
    address = os.environ.get(POSTGRES)
    if not address:
        pytest.skip(f"{POSTGRES} is unset; set it to a server's URL to run these on PostgreSQL")
    server = sa.create_engine(address, isolation_level="AUTOCOMMIT")
    name = f"sweeper_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        # What a server would lose that crashes is not what these tests are about.
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    url = server.url.set(database=name)
    inside = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        Database.open(url.render_as_string(hide_password=False), create=True).close()
        schema = sa.MetaData()
        schema.reflect(inside)
        tables = tuple(t.name for t in schema.sorted_tables if t.name not in _VERSIONS)
        yield OneDatabase(server, inside, tables)
    finally:
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        server.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a database without a study."""
    if request.param == "sqlite":
        path = tmp_path / "sweeper.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    database = request.getfixturevalue("postgresql_database")
    yield database.url
    database.empty()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url, create=True, patience=30) as opened:
        yield opened


@pytest.fixture
def repository(database: Database) -> Repository:
    return Repository(database)
