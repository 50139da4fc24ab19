"""Display of URLs without their secrets, even for a URL that is malformed.

A URL that is mistyped is shown most of all, and then no parser knows where its password begins. So
nothing here parses: whatever stands before the last ``@`` and behind a ``:`` is hidden, and so is
the value of every parameter that is not known to be harmless.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_HIDDEN = "***"
_NO_CREDENTIALS = re.compile(
    r"sqlite(\+\w+)?:///|file:///|https?://[^/@]*/|[A-Za-z]:\\", re.IGNORECASE
)
"""Beginning of a URL without credentials: what follows is a path."""

_BEGINS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*)?:?/{1,3}|[A-Za-z][A-Za-z0-9+.-]*:(?=[^@]*:)")
_NO_PORT = re.compile(r"(\w{2,}:/{1,2}[^/:@\[\]]*:)(?!\d*(?:[/,]|$))[^/]*")
"""A host's name and what is no number behind it: a user and a password that lack their host."""

_HARMLESS = frozenset(
    {
        "application_name", "cache", "channel_binding", "client_encoding", "connect_timeout",
        "dbname", "gssencmode", "host", "hostaddr", "immutable", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "load_balance_hosts", "mode", "nolock", "port",
        "service", "sslcert", "sslcrl", "sslmode", "sslrootcert", "target_session_attrs",
        "tcp_user_timeout", "timeout", "uri", "user",
    }
)  # fmt: skip
"""Parameters of SQLite's and PostgreSQL's URLs that are no secret; of any other one knows not."""

_SECRET = re.compile(
    r"(?i)\b(\w*(?:password|passwd|passphrase|pwd|secret|token|credential|api_?key|access_?key)\w*"
    r"\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;,'\")]+)"
)
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/[^\s'\"<>`]*")


def shown_url(url: object) -> str:
    """Return ``url`` as it may be printed: passwords, keys and tokens are ``***`` in it.

    Args:
        url: A database's, a cluster's or an object store's URL, or what somebody took for one.
    """
    text = str(url)
    if not any(mark in text for mark in (":", "@", "=")):
        return text
    address, mark, query = text.partition("?")
    if mark and "@" in query and "=" not in query.partition("@")[0]:
        # A password with a question mark in it.
        address, mark, query = text, "", ""
    shown = _shown_address(address)
    if not mark:
        return shown
    return f"{shown}?{'&'.join(_shown_parameter(part) for part in query.split('&'))}"


def shown_text(text: str) -> str:
    """Return ``text``, such as an error's message, with every URL in it as `shown_url` shows it."""
    shown = _URL_IN_TEXT.sub(lambda found: shown_url(found[0]), text)
    return _SECRET.sub(rf"\1{_HIDDEN}", shown)


def without_secrets(text: str, url: object) -> str:
    """Return ``text``, which another program says about ``url``, without the secrets of that URL.

    A driver says them as it was given them, apart from the URL, and decoded.
    """
    for secret in sorted(_secrets(str(url)), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return shown_text(text)


def _shown_address(address: str) -> str:
    shown = _SECRET.sub(rf"\1{_HIDDEN}", _without_credentials(address))
    plain = unquote(address)
    if shown == address != plain and _shown_address(plain) != plain:
        # What a parser took for a name, and wrote with its punctuation encoded.
        return _shown_address(plain)
    return shown


def _without_credentials(address: str) -> str:
    if _NO_CREDENTIALS.match(address):
        return address
    credentials, at, rest = address.rpartition("@")
    if not at:
        return _NO_PORT.sub(rf"\1{_HIDDEN}", address)
    begins = _BEGINS.match(credentials)
    scheme = begins[0] if begins else ""
    user, colon, _ = credentials[len(scheme) :].partition(":")
    return f"{scheme}{user}:{_HIDDEN}@{rest}" if colon else address


def _shown_parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if not part or (equals and name in _HARMLESS):
        return part
    return f"{name}={_HIDDEN}" if equals and value else (part if equals else _HIDDEN)


def _secrets(url: str) -> set[str]:
    address, _, query = url.partition("?")
    found = {
        value
        for part in query.split("&")
        for name, _, value in (part.partition("="),)
        if name not in _HARMLESS
    }
    for begins in (address, url):
        if not _NO_CREDENTIALS.match(begins):
            found.add(begins.rpartition("@")[0].rpartition("://")[2].partition(":")[2])
    return {each for one in found for each in (one, unquote(one)) if each and each != _HIDDEN}
