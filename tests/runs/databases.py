"""A database of a test's own: a file, or on the server that `SWEEPER_TEST_POSTGRES` names."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from sweeper.db.database import Database

POSTGRES = "SWEEPER_TEST_POSTGRES"


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "empty.db"
        Database.open(f"sqlite:///{file}", create=True).close()
        return file.read_bytes()


def opened_database(file: Path) -> Database:
    """Open a database of SQLite's; a new one is a copy, as its migrations take their time."""
    if not file.exists():
        file.write_bytes(_empty())
    return Database.open(f"sqlite:///{file}", create=True)


@dataclass(frozen=True)
class Server:
    """An empty database of sweeper's, and how to treat it badly."""

    engine: sa.Engine
    name: str

    @property
    def url(self) -> str:
        return self.url_at(self.engine.url.host or "", self.engine.url.port or 5432)

    def url_at(self, host: str, port: int) -> str:
        url = self.engine.url.set(database=self.name, host=host, port=port)
        return url.render_as_string(hide_password=False)

    def run(self, statement: str) -> None:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def end_connections(self) -> int:
        """Have the server end every connection to the database; how many there were."""
        with self.engine.connect() as connection:
            ended = connection.exec_driver_sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                f"WHERE datname = '{self.name}'"
            ).scalar()
        return int(ended or 0)

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Refuse every connection: as near to a restart as a server comes that others use too."""
        self.run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
        try:
            self.end_connections()
            yield
        finally:
            self.run(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")


@contextlib.contextmanager
def postgresql_database() -> Iterator[Server]:
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


class Cable:
    """A TCP proxy to the server: it delays what passes, can be cut, and stay cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.delay = 0.0
        self.cuts = 0
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection; new ones are made at once."""
        with self._lock:
            ends, self._open = self._open, set()
        self.cuts += len(ends) // 2
        for end in ends:
            # Linger 0: the other side sees a reset, not a polite end.
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Break every connection, and every new one, until the end of the block."""
        self._whole.clear()
        self.cut()
        try:
            yield
        finally:
            self._whole.set()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            if not self._whole.is_set():
                ours.close()
                continue
            theirs = socket.create_connection(self._server)
            with self._lock:
                self._open |= {ours, theirs}
            threading.Thread(target=self._pass_on, args=(ours, theirs), daemon=True).start()

    def _pass_on(self, ours: socket.socket, theirs: socket.socket) -> None:
        other = {ours: theirs, theirs: ours}
        with selectors.DefaultSelector() as selector, ours, theirs, contextlib.suppress(OSError):
            for end in other:
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    data = end.recv(65536)
                    if not data:
                        return
                    if self.delay:
                        time.sleep(self.delay)
                    other[end].sendall(data)
