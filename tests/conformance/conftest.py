"""Every database that a repository can be kept in, as fixtures."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[sa.Engine]:
    """Give an engine on the server, and on it an empty database ``sweeper_template_PID``."""
    server = os.environ.get(POSTGRES)
    if not server:
        pytest.skip(f"{POSTGRES} is unset; set it to a server's URL to run these on PostgreSQL")
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    name = f"sweeper_template_{os.getpid()}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        Database.open(url_on(engine, name), create=True).close()
        yield engine
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        engine.dispose()


def url_on(server: sa.Engine, name: str) -> str:
    return server.url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give a database without a study, dropped at the end."""
    if request.param == "sqlite":
        path = tmp_path / "sweeper.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    server = request.getfixturevalue("postgresql_server")
    name = f"sweeper_{uuid.uuid4().hex[:12]}"
    with server.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} TEMPLATE sweeper_template_{os.getpid()}"
        )
    try:
        yield url_on(server, name)
    finally:
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with Database.open(url, create=True, patience=30) as opened:
        yield opened


@pytest.fixture
def repository(database: Database) -> Repository:
    return Repository(database)
