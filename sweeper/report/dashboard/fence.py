"""What of a browser's requests reaches the dashboard: reads and notes, addressed to this machine.

optuna-dashboard has no login and can delete studies. Deleting or renaming one, or telling a trial its
result, would break the records that running workers rely on. And a web page elsewhere may point its
own name at 127.0.0.1 (DNS rebinding), so a request must name this machine.
"""

from __future__ import annotations

import ipaddress
import json
import re
import urllib.parse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_NOTE = re.compile(r"/api/studies/\d+(/\d+)?/note/?")

_NOT_SENT = ("access-control-allow-origin",)
"""Headers of optuna-dashboard's that would let any web page read a study's artifacts."""

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
    """A WSGI application that lets only reads and notes through to ``application``.

    Args:
        application: The whole dashboard.
        local_only: Whether a request's ``Host`` must be a name of this machine.
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
        return "sweeper serves this dashboard for reading and notes: workers rely on the rest"


def _with_headers(start_response: StartResponse) -> StartResponse:
    def start(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        sent = [(name, value) for name, value in headers if name.lower() not in _NOT_SENT]
        if exc_info is None:
            return start_response(status, [*sent, *_ADDED])
        return start_response(status, [*sent, *_ADDED], exc_info)

    return start
