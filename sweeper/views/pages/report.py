"""Report: a study's page in one file without network access; and the HTML of any page.

The file runs two scripts, Plotly's and its own. A Content Security Policy names both by digest, so
no other script can run and nothing is loaded. Plotly sets styles as it draws, so inline styles are
allowed in the file. A served page loads only the server's own files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import UsageError
from sweeper.spec.settings import Settings
from sweeper.support.installation import DISTRIBUTION, VERSION, install_command
from sweeper.views.pages.content import Page, no_address
from sweeper.views.pages.pictures import pictures_of, write_png
from sweeper.views.pages.study import Frame, check_comparable, study_page
from sweeper.views.pages.tables import Shown, moment

if TYPE_CHECKING:
    import jinja2
    from plotly.graph_objects import Figure


GENERATOR = '<meta name="generator" content="sweeper '
"""Marker near the beginning of every report."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    # plotly.js creates images from its drawings.
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of a served page."""

_OWN_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
"""Marker by which plotly.js finds the style for maps, which it would otherwise add and the policy refuse."""


def file_of(page: Page, made_at: str) -> str:
    """Return the page as HTML for a file, with figures and scripts.

    Raises:
        UsageError: Jinja or Plotly is not installed.
    """
    try:
        import jinja2  # noqa: F401 - so that a missing package is named
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
    """Return the page as HTML for the dashboard.

    The dashboard's pages are below ``prefix``, and the page's figures below ``address``.
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
    """Return the figures as JSON that is safe inside of an HTML element."""
    text = json.dumps(figures)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


_LOOKED_AT = 4096


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Options of a report.

    Attributes:
        output: The file; ``STUDY-report.html`` here by default.
        compare: Another study of the same database and the same objective.
        png: A directory for the pictures as PNG files; None for none.
        force: Replace a file that is not a report.
        patience: Seconds to wait for a busy database.
    """

    study: str
    settings: Settings
    output: Path | None = None
    compare: str | None = None
    png: Path | None = None
    force: bool = False
    patience: float = 10.0


@dataclass(frozen=True)
class Written:
    """The files of a report: the page, and the pictures."""

    page: Path
    pictures: tuple[Path, ...]


def make_report(request: ReportRequest) -> Written:
    """Read the study, draw it, and write the page and the pictures.

    Raises:
        UnknownStudyError: There is no such study.
        UsageError: The studies cannot be compared, a package or browser is missing, or the output
            is an existing file that is not a report.
        ExecutionError: The browser that draws PNG files failed.
        DatabaseUnavailableError: The database cannot be reached.
    """
    settings, now = request.settings, datetime.now(UTC)
    with Database.open(settings.storage, create=False, patience=request.patience) as database:
        repository = Repository(database)
        shown = read_shown(repository, request.study, now)
        other = None if request.compare is None else repository.results(request.compare)
    if other is not None:
        check_comparable(shown.results, other)
    pictures = pictures_of(shown.results, other)
    frame = Frame(_commands(shown, settings), "How to reproduce it", compared=other)
    page = request.output or Path(f"{request.study}-report.html")
    text = file_of(study_page(shown, pictures, frame), f"{moment(now)} UTC")
    write(text, page, force=request.force)
    drawn = () if request.png is None else write_png(pictures, request.png)
    return Written(page, drawn)


def read_shown(repository: Repository, study: str, now: datetime) -> Shown:
    """Read the content of a study's page from the database.

    Raises:
        UnknownStudyError: There is no such study.
    """
    accepted = repository.definition_changes(study)
    return Shown(
        repository.results(study),
        repository.study(study),
        now,
        no_address,
        environments=repository.environments(study),
        changes=tuple(text for each in accepted for text in each.changes),
    )


def _commands(shown: Shown, settings: Settings) -> tuple[tuple[str, str], ...]:
    status = shown.results.status
    versions = next((dict(e.versions) for e in shown.environments if e.versions), {})
    python = versions.pop("python", None)
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    words = ["pip", "install", f"{DISTRIBUTION}=={VERSION}", *pinned]
    on = "" if python is None else f", on Python {python}"
    commands = [(shlex.join(words), f"installs what the first attempts ran with{on}")]
    if status.finished < status.target:
        commands.append((settings.command("resume", status.study), "goes on with the study"))
    for trial in shown.results.pareto[:3]:
        number = str(trial.number)
        commands.append(
            (
                settings.command("verify", status.study, "--trial", number),
                f"trains trial {number} again from nothing and compares every digest with this one's",
            )
        )
    if shown.source is not None:
        again = shlex.join(["sweeper", "run", shown.source, "--runs-dir", "runs-again"])
        commands.append(
            (again, "runs the whole study again, beside this one: every digest must be the same")
        )
    return tuple(commands)


def write(page: str, path: Path, *, force: bool) -> None:
    """Write the page under a temporary name, and rename it to ``path``.

    Raises:
        UsageError: ``path`` is an existing file that is not a report, without ``force``; or it
            cannot be written.
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
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
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
        msg = f"{path} already exists and cannot be read: {error.strerror or error}; see --output"
        raise UsageError(msg) from error
    if GENERATOR not in begins:
        msg = (
            f"{path} already exists and is not a report of sweeper; name another file with "
            "--output, or replace it with --force"
        )
        raise UsageError(msg)
