"""Server of the dashboard, beside running workers: optuna-dashboard at ``/``, sweeper's at ``/sweeper/``.

It listens on 127.0.0.1 by default. A SQLite file must be in WAL mode: with a rollback journal a
reader blocks the workers' writes, and the study fails with "database is locked" (optuna-dashboard
issue 545).

optuna-dashboard has no login and can delete studies. Deleting or renaming a study, or setting a
trial's result, would break records that running workers rely on, so such requests are refused. A
web page elsewhere may let its name resolve to 127.0.0.1 (DNS rebinding), so a request must name
this machine.
"""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import socket
import socketserver
import sqlite3
import threading
import urllib.parse
import wsgiref.simple_server
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.errors import (
    DatabaseUnavailableError,
    ExecutionError,
    StorageError,
    SweeperError,
    UsageError,
)
from sweeper.support.installation import install_command
from sweeper.support.shown import shown_url, without_secrets
from sweeper.views.pages.content import Advice

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from sweeper.db.repository import Repository

_PATIENCE = 10.0
"""Seconds that a page waits for a busy database."""


class OpenedRepository:
    """Opener of a database's repository; safe for several threads.

    A database may contain only Optuna's studies at first, and get sweeper's tables while the
    dashboard runs.
    """

    def __init__(self, storage: str) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._opened: Repository | None = None

    def __call__(self) -> Repository:
        """Return the repository.

        Raises:
            DatabaseUnavailableError: It has no study of sweeper.
            DatabaseVersionError: Another version wrote it.
        """
        from sweeper.db.database import Database
        from sweeper.db.repository import Repository

        with self._lock:
            if self._opened is None:
                database = Database.open(self._storage, create=False, patience=_PATIENCE)
                self._opened = Repository(database)
            return self._opened

    def close(self) -> None:
        """Close its connections."""
        with self._lock:
            if self._opened is not None:
                self._opened.database.close()
                self._opened = None


_NOTE = re.compile(r"/api/studies/\d+(/\d+)?/note/?")

_NOT_SENT = ("access-control-allow-origin",)
"""Headers of optuna-dashboard that would allow any web page to read a study's artifacts."""

_ADDED = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "no-referrer"),
]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class FencedApplication:
    """A WSGI application that passes only reads and notes on to ``application``.

    With ``local_only``, a request's ``Host`` must be a name of this machine.
    """

    def __init__(self, application: WSGIApplication, *, local_only: bool) -> None:
        self._application = application
        self._local_only = local_only

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        reason = self._refusal(environ)
        if reason is None:
            return self._application(environ, _with_headers(start_response))
        body = json.dumps({"reason": reason}).encode()
        start_response(
            "403 Forbidden",
            [("Content-Type", "application/json"), ("Content-Length", str(len(body)))],
        )
        return [body]

    def _refusal(self, environ: WSGIEnvironment) -> str | None:
        host = urllib.parse.urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname or ""
        if self._local_only and not is_loopback(host):
            return f"this dashboard answers on localhost only, not as {host!r}"
        method, path = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", "")
        if method in {"GET", "HEAD"} or (method == "PUT" and _NOTE.fullmatch(path)):
            return None
        return (
            "this dashboard is read-only, except for notes, because workers rely on the other data"
        )


def _with_headers(start_response: StartResponse) -> StartResponse:
    def start(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        sent = [(name, value) for name, value in headers if name.lower() not in _NOT_SENT]
        if exc_info is None:
            return start_response(status, [*sent, *_ADDED])
        return start_response(status, [*sent, *_ADDED], exc_info)

    return start


_NO_ADVICE = Advice()


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """Server with one thread for each request, so that a slow plot does not block others."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without a reverse lookup of the host's name, which can take many seconds."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietRequests(wsgiref.simple_server.WSGIRequestHandler):
    """Request handler without a log in the user's terminal."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's
        pass


class DashboardServer:
    """A listening dashboard; ``serve`` answers requests until it is stopped.

    Attributes:
        url: URL of optuna-dashboard; sweeper's pages are at ``sweeper/`` below it.
    """

    def __init__(self, server: _Server, host: str, release: Callable[[], None]) -> None:
        self._server = server
        self._release = release
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{server.server_port}/"

    def serve(self, announce: Callable[[str], None]) -> None:
        """Answer requests until SIGINT or SIGTERM, then close the socket and return.

        ``announce`` receives the URL after the signal handlers are installed.
        """
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            announce(self.url)
            self._server.serve_forever()
        except KeyboardInterrupt:
            return
        finally:
            self.close()
            signal.signal(signal.SIGTERM, before)

    def close(self) -> None:
        """Close the socket and the database's connections."""
        self._server.server_close()
        self._release()


def open_dashboard(
    storage: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    runs_dir: Path | None = None,
    advice: Advice = _NO_ADVICE,
    notice: Callable[[str], None] = lambda _: None,
) -> DashboardServer:
    """Open the database and start listening; `DashboardServer.serve` then answers requests.

    Args:
        storage: SQLAlchemy URL of the database.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        runs_dir: The runs directory, for artifacts; None for no artifacts.
        advice: Next commands on the pages.
        notice: Called with each failure to update notes and plots.

    Raises:
        UsageError: The dashboard's packages are not installed.
        DatabaseUnavailableError: There is no database, or it has no Optuna tables.
        DatabaseVersionError: Another version of Optuna wrote it.
        StorageError: A SQLite database is not in WAL mode.
        ExecutionError: The address cannot be listened on.
    """
    try:
        import jinja2  # noqa: F401 - so that it is missed here, and not at the first page
        from optuna_dashboard import wsgi

        from sweeper.views.dashboard.annotating import (
            AnnotatingApplication,
            Annotator,
            ArtifactFiles,
        )
        from sweeper.views.dashboard.site import PagesApplication, mounted
    except ModuleNotFoundError as error:
        msg = (
            f"the dashboard needs the package {error.name!r}, which is not installed: "
            f"{install_command('dashboard')}"
        )
        raise UsageError(msg) from None
    from sweeper.db.faults import parse_url
    from sweeper.db.schema import optuna_storage

    url = parse_url(storage)
    if url.get_backend_name() == "sqlite":
        _check_file(Path(url.database or ""))
    files = None if runs_dir is None else ArtifactFiles(runs_dir)
    try:
        shown = optuna_storage(url, create=False)
        optunas = wsgi(shown, artifact_store=files)
    except SweeperError:
        raise
    except Exception as error:
        msg = (
            f"the database {shown_url(url)} cannot be shown: {type(error).__name__}: "
            f"{without_secrets(str(error), storage)}; expected one that `sweeper run` or Optuna has written"
        )
        raise DatabaseUnavailableError(msg) from error
    repository = OpenedRepository(storage)
    annotator = Annotator(repository, runs_dir, advice, notice)
    application = mounted(
        AnnotatingApplication(optunas, annotator), PagesApplication(repository, advice)
    )

    def release() -> None:
        shown.engine.dispose()
        repository.close()

    fenced = FencedApplication(application, local_only=is_loopback(host))
    return DashboardServer(_listen(host, port, fenced), host, release)


def _listen(host: str, port: int, application: WSGIApplication) -> _Server:
    kind = _Server6 if ":" in host else _Server
    try:
        return wsgiref.simple_server.make_server(
            host, port, application, server_class=kind, handler_class=_QuietRequests
        )
    except OSError as error:
        msg = (
            f"cannot listen on {host} port {port}: {error.strerror or error}; "
            "choose another with --port, or a free one with --port 0"
        )
        raise ExecutionError(msg) from None


def _check_file(file: Path) -> None:
    """Check that the SQLite file exists, because Optuna would create it, and is in WAL mode."""
    if not file.is_file():
        msg = (
            f"there is no database {file}; run a study first (sweeper run FILE), or name another "
            "one with --storage or --runs-dir"
        )
        raise DatabaseUnavailableError(msg)
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            mode = str(database.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error as error:
        msg = f"the database {file} cannot be read: {error}; expected a SQLite file"
        raise DatabaseUnavailableError(msg) from None
    if mode.lower() != "wal":
        msg = (
            f"the database {file} is in journal mode {mode!r}, in which a dashboard can stop a "
            "running study; expected 'wal'. While nothing uses it, type: python -c "
            f"\"import sqlite3; sqlite3.connect({str(file)!r}).execute('PRAGMA journal_mode=WAL')\""
        )
        raise StorageError(msg)
