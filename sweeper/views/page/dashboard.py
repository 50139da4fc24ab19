"""Server of the dashboard: optuna-dashboard at ``/``, sweeper's page at ``/sweeper/``.

It listens on 127.0.0.1 by default. optuna-dashboard has no login and can delete studies. Deleting or renaming a study, or setting a
trial's result, would break records that running workers rely on, so such requests are refused. A
web page elsewhere may let its name resolve to 127.0.0.1 (DNS rebinding), so a request must name
this machine.

An open page asks every two seconds for what has changed since the version that it has; the answer to a
page that lacks nothing is 304. Names, parameters and errors come from users: the page shows them as text,
and its Content Security Policy allows only scripts and styles of this server.
"""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import socket
import socketserver
import urllib.parse
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from sweeper.errors import (
    ExecutionError,
    StorageError,
    UnknownStudyError,
    UsageError,
)
from sweeper.records.results import progress_text
from sweeper.support.installation import install_command
from sweeper.views.page.payload import Advice, LivePayloads, log_tail
from sweeper.views.page.report import PATIENCE, asset, page_template

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from sweeper.db.repository import Repository


_ADDED = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "no-referrer"),
]

_ANY_ORIGIN = "access-control-allow-origin"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def site(
    dashboard: WSGIApplication, pages: WSGIApplication, *, local_only: bool
) -> WSGIApplication:
    """Return an application with the page below ``/sweeper`` and the dashboard elsewhere, only for reads.

    With ``local_only`` the ``Host`` must be this machine.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = urllib.parse.urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname or ""
        if local_only and not is_loopback(host):
            reason = f"this dashboard answers on localhost only, not as {host!r}"
        elif environ.get("REQUEST_METHOD") not in {"GET", "HEAD"}:
            reason = "this dashboard is read-only, because workers rely on the data"
        else:
            is_page = f"{environ.get('PATH_INFO', '')}/".startswith(f"{PREFIX}/")
            application = pages if is_page else dashboard
            return application(environ, _with_headers(start_response))
        body = json.dumps({"reason": reason}).encode()
        size = ("Content-Length", str(len(body)))
        start_response("403 Forbidden", [("Content-Type", "application/json"), size])
        return [body]

    return answer


PREFIX = "/sweeper"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # plotly.js creates images from its drawings.
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_NAME = r"(?P<name>[^/]{1,120})"
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_SCRIPT = "text/javascript; charset=utf-8"
_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": _SCRIPT,
    "plotly.min.js": _SCRIPT,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request; without a body, the browser has it already."""

    body: bytes | None
    kind: str = _HTML
    status: HTTPStatus = HTTPStatus.OK
    tag: str = ""


class PageApplication:
    """The WSGI application of sweeper's page."""

    def __init__(
        self, repository: Repository, advice: Advice, runs_dir: Path | None = None
    ) -> None:
        self._repository = repository
        self._runs_dir = runs_dir
        self._payloads = LivePayloads(advice)
        self._routes: tuple[tuple[re.Pattern[str], Callable[..., Answer]], ...] = (
            (re.compile(r"/?"), self._studies),
            (re.compile(rf"/studies/{_NAME}/?"), self._study),
            (re.compile(rf"/studies/{_NAME}/data\.json"), self._study_data),
            (re.compile(rf"/studies/{_NAME}/trials/(?P<number>\d{{1,9}})/log\.json"), self._log),
            (re.compile(r"/static/(?P<file>[a-z.]+)"), self._static),
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._answer(environ)
        tag = f'"{answer.tag or xxhash.xxh3_128_hexdigest(answer.body or b"")}"'
        headers = [
            ("Content-Security-Policy", POLICY),
            ("Cache-Control", "no-cache"),
            ("ETag", tag),
        ]
        requested = environ.get("HTTP_IF_NONE_MATCH")
        if answer.status is HTTPStatus.OK and (answer.body is None or requested == tag):
            start_response("304 Not Modified", headers)
            return []
        body = answer.body or b""
        headers += [("Content-Type", answer.kind), ("Content-Length", str(len(body)))]
        start_response(f"{answer.status.value} {answer.status.phrase}", headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    def _answer(self, environ: WSGIEnvironment) -> Answer:
        # WSGI has the path as Latin-1 text of its UTF-8 bytes.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        path = path.removeprefix(PREFIX)
        since = urllib.parse.parse_qs(environ.get("QUERY_STRING", "")).get("since", [""])[0]
        try:
            for pattern, answer in self._routes:
                match = pattern.fullmatch(path)
                if match is not None:
                    more = {"since": since} if answer == self._study_data else {}
                    return answer(**match.groupdict(), **more)
        except UnknownStudyError as error:
            return _problem(HTTPStatus.NOT_FOUND, str(error))
        except StorageError as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return _problem(HTTPStatus.NOT_FOUND, f"There is no page {PREFIX}{path[:200]} here.")

    def _studies(self) -> Answer:
        statuses = self._repository.statuses(each=False)
        studies = [
            (status.study, _study_at(status.study), progress_text(status))
            for status in reversed(statuses)
        ]
        none = "There is no study in this database yet. `sweeper run FILE` starts one."
        return _page("Studies", message="" if studies else none, studies=studies)

    def _study(self, name: str) -> Answer:
        self._repository.study(name)
        return _page(name, f"{_study_at(name)}/data.json")

    def _study_data(self, name: str, since: str) -> Answer:
        repository = self._repository
        more = {"elsewhere": f"/dashboard/studies/{repository.optuna_ids().get(name)}"}
        version, data = self._payloads.answer(repository, name, since, more)
        return Answer(None if data is None else data.encode(), _JSON, tag=version)

    def _log(self, name: str, number: str) -> Answer:
        trial = self._repository.trial(name, int(number))
        return Answer(json.dumps({"log": log_tail(self._runs_dir, trial)}).encode(), _JSON)

    def _static(self, file: str) -> Answer:
        if file not in _STATIC:
            return _problem(HTTPStatus.NOT_FOUND, f"There is no file {file} here.")
        return Answer(asset(file).encode(), _STATIC[file])


def _study_at(name: str) -> str:
    return f"{PREFIX}/studies/{urllib.parse.quote(name, safe='')}"


def _page(
    title: str,
    source: str = "",
    message: str = "",
    status: HTTPStatus = HTTPStatus.OK,
    studies: Sequence[tuple[str, str, str]] = (),
) -> Answer:
    text = page_template().render(
        title=title, source=source, message=message, file=None, prefix=PREFIX, studies=studies
    )
    return Answer(text.encode(), status=status)


_WHAT_IS_HERE = (
    "The links above lead to all studies of this database and to optuna-dashboard. A study is shown here "
    "once `sweeper run FILE` has started it; `sweeper ls` lists the studies."
)


def _problem(status: HTTPStatus, message: str) -> Answer:
    text = f"{message[:1].upper()}{message[1:].rstrip('.')}. {_WHAT_IS_HERE}"
    return _page(status.phrase, message=text, status=status)


def _with_headers(start_response: StartResponse) -> StartResponse:
    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Callable[[bytes], object]:
        # That header of optuna-dashboard would allow any web page to read a study's artifacts.
        others = [(name, value) for name, value in headers if name.lower() != _ANY_ORIGIN]
        return start_response(status, [*others, *_ADDED], *more)

    return start


class _QuietRequests(wsgiref.simple_server.WSGIRequestHandler):
    """Request handler without a log in the user's terminal."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's
        pass


class DashboardServer(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """A listening dashboard, with one thread for each request, so that a slow plot does not block others.

    Attributes:
        url: URL of optuna-dashboard; sweeper's pages are at ``sweeper/`` below it.
        opened: Resources that are closed with it, such as the database.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, application: WSGIApplication) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _QuietRequests)
        self.set_app(application)
        self.opened = ExitStack()
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind without a reverse lookup of the host's name, which can take many seconds."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name = str(host)
        self.server_port = int(port)
        self.setup_environ()

    def serve(self, announce: Callable[[str], None]) -> None:
        """Answer requests until SIGINT or SIGTERM, then close the socket and return.

        ``announce`` receives the URL after the signal handlers are installed.
        """
        previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            announce(self.url)
            self.serve_forever()
        except KeyboardInterrupt:
            return
        finally:
            self.close()
            signal.signal(signal.SIGTERM, previous_handler)

    def close(self) -> None:
        """Close the socket and the database's connections."""
        self.server_close()
        self.opened.close()


def open_dashboard(
    storage: str,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    runs_dir: Path | None = None,
    advice: Advice | None = None,
) -> DashboardServer:
    """Open the database and start listening; `DashboardServer.serve` then answers requests.

    Port 0 takes a free one. Without a runs directory, there are no logs.
    """
    try:
        from optuna_dashboard import wsgi

        page_template()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the dashboard needs the package {error.name!r}, which is not installed: "
            f"{install_command('dashboard')}"
        ) from None
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with ExitStack() as opened:
        database = opened.enter_context(Database.open(storage, create=False, patience=PATIENCE))
        optuna_storage = database.optuna_storage()
        opened.callback(optuna_storage.engine.dispose)
        pages = PageApplication(Repository(database), advice or Advice(), runs_dir)
        local = site(wsgi(optuna_storage), pages, local_only=is_loopback(host))
        try:
            server = DashboardServer(host, port, local)
        except OSError as error:
            raise ExecutionError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; "
                "choose another with --port, or a free one with --port 0"
            ) from None
        server.opened = opened.pop_all()
        return server
