"""Rendering a report, and writing it so that there is a whole one or none.

The page runs two scripts, Plotly's and its own, and a Content Security Policy names both by their
digest: nothing else that got into the page could run, and nothing is fetched from anywhere. Plotly
sets styles as it draws, so inline styles are allowed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sweeper.errors import UsageError
from sweeper.installation import VERSION, install_command
from sweeper.report.document.content import Content
from sweeper.report.document.pictures import Picture

_HERE = Path(__file__).parent
_GENERATOR = '<meta name="generator" content="sweeper '
_LOOKED_AT = 4096


def render(content: Content, pictures: Sequence[Picture]) -> str:
    """Return the whole page.

    Raises:
        UsageError: Jinja or Plotly is not installed.
    """
    try:
        import jinja2
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        msg = (
            f"a report needs the package {(error.name or '').partition('.')[0]!r}, which is not "
            f"installed; {install_command('plots')}"
        )
        raise UsageError(msg) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined
    )
    # A browser digests a script as it reads it, with its line ends made "\n".
    library = get_plotlyjs().replace("\r\n", "\n")
    own = _text("draw.js")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_digest(library)} {_digest(own)}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return environment.get_template("page.html").render(
        content=content,
        pictures=pictures,
        figures=Markup(_data(pictures)),  # noqa: S704 - JSON in which no "<" is left
        library=Markup(library),  # noqa: S704 - of the installed package
        own=Markup(own),  # noqa: S704 - of this one
        style=Markup(_text("style.css")),  # noqa: S704 - of this one
        policy=policy,
        version=VERSION,
    )


def write(page: str, path: Path, *, force: bool = False) -> None:
    """Write the page beside ``path`` under another name, and rename it.

    Raises:
        UsageError: There is something at ``path`` that is no report, and no ``force``; or it cannot
            be written there.
    """
    _check_target(path, force=force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        msg = f"the report cannot be written to {path}: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        msg = f"the report cannot be written to {path}: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    finally:
        temporary.unlink(missing_ok=True)


def _check_target(path: Path, *, force: bool) -> None:
    if force and not path.is_dir():
        return
    if path.is_dir():
        msg = f"{path} is a directory; name a file with --output FILE.html"
        raise UsageError(msg)
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            begins = file.read(_LOOKED_AT).decode("utf-8", errors="replace")
    except OSError as error:
        msg = f"{path} is there already and cannot be read: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    if _GENERATOR not in begins:
        msg = (
            f"{path} is there already and is no report of sweeper's; name another file with "
            "--output, or replace it with --force"
        )
        raise UsageError(msg)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _digest(script: str) -> str:
    found = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


def _data(pictures: Sequence[Picture]) -> str:
    """The figures as JSON that cannot end the element which it stands in."""
    parts = (f"{json.dumps(picture.key)}: {picture.figure.to_json()}" for picture in pictures)
    text = f"{{{', '.join(parts)}}}"
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
