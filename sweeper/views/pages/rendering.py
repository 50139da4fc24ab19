"""HTML of a page: a file that needs no network, or an answer of the dashboard's.

The file runs two scripts, Plotly's and its own, and a Content Security Policy names both by their
digest: nothing else that got into the page could run, and nothing is fetched from anywhere. Plotly
sets styles as it draws, so inline styles are allowed there. A page that is served loads the server's
own files alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sweeper.errors import UsageError
from sweeper.support.installation import VERSION, install_command
from sweeper.views.pages.content import Page

if TYPE_CHECKING:
    import jinja2
    from plotly.graph_objects import Figure

GENERATOR = '<meta name="generator" content="sweeper '
"""Near the beginning of every file that was written here."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # plotly.js makes pictures of its own drawings.
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of a served page."""

_OWN_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
"""Marker by which plotly.js finds the style for maps, which it would otherwise add and the policy refuse."""


def file_of(page: Page, made_at: str) -> str:
    """Return the page as the text of a file, with its figures and scripts in it.

    Raises:
        UsageError: Jinja or Plotly is not installed.
    """
    try:
        import jinja2  # noqa: F401 - so that what is missing is named
        from markupsafe import Markup

        # A browser digests a script as it reads it, with its line ends made "\n".
        library = asset("plotly.min.js").replace("\r\n", "\n")
    except ModuleNotFoundError as error:
        msg = (
            f"a report needs the package {(error.name or '').partition('.')[0]!r}, which is not "
            f"installed: {install_command('plots')}"
        )
        raise UsageError(msg) from error
    own = asset("page.js")
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
    figures = {picture.key: plain_json(picture.draw()) for picture in page.pictures}
    return _template().render(
        page=page,
        file={
            "policy": policy,
            "style": Markup(asset("page.css")),  # noqa: S704 - of this package
            "figures": Markup(_data(figures)),  # noqa: S704 - JSON in which no "<" is left
            "library": Markup(library),  # noqa: S704 - of the installed package
            "own": Markup(own),  # noqa: S704 - of this one
            "made_at": made_at,
        },
        address="",
        prefix="",
    )


def served(page: Page, prefix: str, address: str = "") -> str:
    """Return the page as the dashboard answers it.

    Args:
        page: The page.
        prefix: Address below which the dashboard's own pages are.
        address: Address of the page, below which its figures are.
    """
    return _template().render(page=page, file=None, prefix=prefix, address=address)


def plain_json(figure: Figure) -> dict[str, object]:
    """Return the figure for plotly.js, as plain JSON."""
    found: dict[str, object] = json.loads(figure.to_json(validate=False))
    return found


@cache
def asset(name: str) -> str:
    """Return a script or style of the pages, or Plotly's own script."""
    if name == "plotly.min.js":
        return (files("plotly") / "package_data" / name).read_text(encoding="utf-8")
    return (files("sweeper.views.pages") / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sweeper.views.pages", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "zip": zip,
        "version": VERSION,
        "plotly_version": version("plotly"),
        "plotly_styles": _OWN_STYLE.findall(asset("plotly.min.js")),
    }
    return environment.get_template("page.html")


def _digest(script: str) -> str:
    found = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


def _data(figures: Mapping[str, Any]) -> str:
    """Return the figures as JSON that cannot end the element which it stands in."""
    text = json.dumps(figures)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
