"""A database of a test's own: a file, or on the server that `SWEEPER_TEST_POSTGRES` names."""

import contextlib
import functools
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from sweeper.db.database import Database

POSTGRES = "SWEEPER_TEST_POSTGRES"


@functools.cache
def empty_database():
    """Return the content of a file without a study; made once for a whole run, before files are forked."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "empty.db"
        Database.open(f"sqlite:///{file}", create=True).close()
        return file.read_bytes()


def opened_database(file):
    """Open a database of SQLite's; a new one is a copy, as its migrations take their time."""
    place_database(file)
    return Database.open(f"sqlite:///{file}", create=True)


def place_database(file):
    """Put an empty database where a study is to be run."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(empty_database())


@dataclass(frozen=True)
class Server:
    """An empty database of sweeper's, and how to treat it badly."""

    engine: sa.Engine
    name: str

    @property
    def url(self):
        url = self.engine.url.set(database=self.name)
        return url.render_as_string(hide_password=False)

    def run(self, statement):
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def end_connections(self):
        """Have the server end every connection to the database; how many there were."""
        with self.engine.connect() as connection:
            ended = connection.exec_driver_sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                f"WHERE datname = '{self.name}'"
            ).scalar()
        return int(ended or 0)

    @contextlib.contextmanager
    def shut(self):
        """Refuse every connection: as near to a restart as a server comes that others use too."""
        self.run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
        try:
            self.end_connections()
            yield
        finally:
            self.run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")


@contextlib.contextmanager
def postgresql_database():
    """Make a database and drop it; skip the test where there is no server."""
    url = os.environ.get(POSTGRES)
    if not url:
        pytest.skip(f"{POSTGRES} is unset; set it to a server's URL to run these on PostgreSQL")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    server = Server(engine, f"sweeper_{uuid.uuid4().hex[:12]}")
    server.run(f"CREATE DATABASE {server.name}")
    try:
        Database.open(server.url, create=True).close()
        yield server
    finally:
        server.run(f"DROP DATABASE {server.name} WITH (FORCE)")
        engine.dispose()
