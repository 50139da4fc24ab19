"""Display of values and errors in messages: in one short line, and URLs without their secrets.

Mistyped URLs are shown in errors, and cannot be parsed reliably. So no URL is parsed: the text
between a ``:`` and the last ``@`` is hidden, and so is the value of every parameter that is not
known to be harmless.
"""

import re
from urllib.parse import unquote

_HIDDEN = "***"
_NO_CREDENTIALS = re.compile(
    r"sqlite(\+\w+)?:///|file:///|https?://[^/@]*/|[A-Za-z]:\\", re.IGNORECASE
)
"""Pattern of a URL without credentials."""

_BEGINS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*)?:?/{1,3}|[A-Za-z][A-Za-z0-9+.-]*:(?=[^@]*:)")
_NO_PORT = re.compile(r"(\w{2,}:/{1,2}[^/:@\[\]]*:)(?!\d*(?:[/,]|$))[^/]*")
"""Pattern of a name and a port that is not a number: a user and a password without a host."""

_IN_KEY = re.compile(r"(/[^/:]+:)[^/]*")
"""Pattern of a part with a colon of a place in an object store, which has no port."""

_HARMLESS = frozenset(
    {
        "application_name", "cache", "channel_binding", "client_encoding", "connect_timeout",
        "dbname", "gssencmode", "host", "hostaddr", "immutable", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "load_balance_hosts", "mode", "nolock", "port",
        "service", "sslcert", "sslcrl", "sslmode", "sslrootcert", "target_session_attrs",
        "tcp_user_timeout", "timeout", "uri", "user",
    }
)  # fmt: skip
"""Parameters of SQLite's and PostgreSQL's URLs that are not secret."""

_SECRET = re.compile(
    r"(?i)\b(\w*(?:password|passwd|passphrase|pwd|secret|token|credential|api_?key|access_?key)\w*"
    r"\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;,'\")]+)"
)
_URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/[^\s'\"<>`]*[^\s'\"<>`).,;:]")


_LONGEST = 60
"""Most characters of a user's value in a message, so that the advice beside it is seen."""


def shown_value(value: object) -> str:
    """Return ``repr(value)`` in one line, cut to `_LONGEST` characters, for a message about it."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the user's `__repr__`; the message about the value matters more
        text = object.__repr__(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def shown_url(url: object) -> str:
    """Return ``url``, or what was meant as one, for display: passwords, keys and tokens replaced by ``***``."""
    text = str(url)
    if not any(mark in text for mark in (":", "@", "=")):
        return text
    address, mark, query = text.partition("?")
    if mark and "@" in query and "=" not in query.partition("@")[0]:
        # A password with a question mark in it.
        address = text
        mark = ""
        query = ""
    safe_address = _shown_address(address)
    if not mark:
        return safe_address
    return f"{safe_address}?{'&'.join(_shown_parameter(part) for part in query.split('&'))}"


def shown_text(text: str) -> str:
    """Return ``text``, such as an error's message, with `shown_url` applied to every URL in it."""
    safe_text = _URL_IN_TEXT.sub(lambda found: shown_url(found[0]), text)
    return _SECRET.sub(rf"\1{_HIDDEN}", safe_text)


def without_secrets(text: str, url: object) -> str:
    """Return another program's ``text`` about ``url`` without the secrets of that URL.

    Drivers print the secrets separately from the URL, and decoded.
    """
    for secret in sorted(_secrets(str(url)), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return shown_text(text)


def _shown_address(address: str) -> str:
    safe_address = _SECRET.sub(rf"\1{_HIDDEN}", _without_credentials(address))
    plain = unquote(address)
    if safe_address == address != plain and _shown_address(plain) != plain:
        # What a parser took for a name, and wrote with its punctuation encoded.
        return _shown_address(plain)
    return safe_address


def _without_credentials(address: str) -> str:
    if _NO_CREDENTIALS.match(address):
        return address
    credentials, mark, rest = address.rpartition("@")
    if not mark:
        pattern = _IN_KEY if address.lower().startswith(("s3://", "gs://")) else _NO_PORT
        return pattern.sub(rf"\1{_HIDDEN}", address)
    match = _BEGINS.match(credentials)
    scheme = match[0] if match else ""
    user, colon, _ = credentials[len(scheme) :].partition(":")
    return f"{scheme}{user}:{_HIDDEN}@{rest}" if colon else address


def _shown_parameter(part: str) -> str:
    name, equals, value = part.partition("=")
    if not part or (equals and name in _HARMLESS):
        return part
    if not equals:
        # What is no parameter may be the rest of a password.
        return _HIDDEN
    return f"{name}={_HIDDEN}" if value else part


def _secrets(url: str) -> set[str]:
    address, _, query = url.partition("?")
    secrets = {
        value
        for part in query.split("&")
        for name, _, value in (part.partition("="),)
        if name not in _HARMLESS
    }
    # A password may contain a question mark, so the whole URL is searched, too.
    for text in (address, url):
        if not _NO_CREDENTIALS.match(text):
            secrets.add(text.rpartition("@")[0].rpartition("://")[2].partition(":")[2])
    secrets |= {unquote(secret) for secret in secrets}
    return secrets - {"", _HIDDEN}


def error_text(error: BaseException) -> str:
    """Return ``str(error)``, or a text that names the error that ``str`` raises."""
    try:
        return str(error)
    except BaseException as other:  # it may raise whatever it likes, SystemExit too
        return f"<its __str__ raised {type(other).__name__}>"


def shown_error(error: BaseException) -> str:
    """Return the type and the text of an error; the type alone if it has no text, as of an ``assert``."""
    text = error_text(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
