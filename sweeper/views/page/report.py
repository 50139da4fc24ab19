"""Report: the page of a study in one file without network access.

The file runs two scripts, Plotly's and its own. A Content Security Policy names both by digest, so no
other script can run and nothing is loaded. Plotly sets styles as it draws, so inline styles are allowed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.declarations.settings import Settings
from sweeper.errors import UsageError
from sweeper.support.installation import VERSION, install_command
from sweeper.views.page import payload

if TYPE_CHECKING:
    import jinja2

GENERATOR = '<meta name="generator" content="sweeper '
"""Marker near the beginning of every report."""

_OWN_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')
"""Marker by which plotly.js finds the style for maps, which it would otherwise add and the policy refuse."""

_LOGS_BYTES = 2_000_000
"""Total size of the ends of logs in a report."""

PATIENCE = 10.0
"""Seconds that a page waits for a busy database."""


def make_report(
    study: str,
    settings: Settings,
    *,
    output: Path | None = None,
    force: bool = False,
    advice: payload.Advice | None = None,
) -> Path:
    """Write the page of a study, by default to ``STUDY-report.html`` here, and return its path.

    With ``force``, also a file that is not a report is replaced.
    """
    made_at = datetime.now(UTC)
    advice = advice or payload.Advice()
    with Database.open(settings.storage, create=False, patience=PATIENCE) as database:
        repository = Repository(database)
        results = repository.results(study)
        head = payload.study_json(repository, results, advice.study(results.status), made_at)
    head |= {"importance": payload.importances(results), "all": True, "version": ""}
    if results.status.finished < results.status.target:
        head["notices"].append("The study is not finished; this page shows its present state.")
    most = min(_LOGS_BYTES // max(len(results.trials), 1), payload.LOG_BYTES)
    logs = [payload.log_tail(settings.runs_dir, trial, most) for trial in results.trials]
    trials = [
        payload.trial_json(t, advice.trial(t), log)
        for t, log in zip(results.trials, logs, strict=True)
    ]
    page = output or Path(f"{study}-report.html")
    html = file_of(study, payload.joined(head, trials), f"{made_at:%Y-%m-%d %H:%M:%S} UTC")
    write(html, page, force=force)
    return page


def file_of(title: str, data: str, made_at: str) -> str:
    """Return the page as HTML for a file, with its data and scripts."""
    try:
        # A browser digests a script as it reads it, with its line ends made "\n".
        library = asset("plotly.min.js").replace("\r\n", "\n")
        from markupsafe import Markup

        template = page_template()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a report needs the package {(error.name or '').partition('.')[0]!r}, which is not "
            f"installed: {install_command('plots')}"
        ) from error
    page_script = asset("page.js")
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(page_script)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return template.render(
        title=title,
        file={
            "policy": policy,
            "style": Markup(asset("page.css")),  # noqa: S704 - of this package
            "data": _packed(data),
            "library": _packed(library),
            "own": Markup(page_script),  # noqa: S704 - of this one
            "made_at": made_at,
        },
        prefix="",
        source="",
        message="",
        studies=(),
    )


@cache
def page_template() -> jinja2.Template:
    """Return the template of every page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sweeper.views.page", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "version": VERSION,
        "plotly_styles": _OWN_STYLE.findall(asset("plotly.min.js")),
    }
    return environment.get_template("page.html")


@cache
def asset(name: str) -> str:
    """Return a script or style of the page, or Plotly's own script."""
    if name == "plotly.min.js":
        return (files("plotly") / "package_data" / name).read_text(encoding="utf-8")
    return (files("sweeper.views.page") / name).read_text(encoding="utf-8")


def _packed(text: str) -> str:
    """Return a text compressed, because a browser unpacks it sooner than it reads it from a large page."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _digest(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write(page: str, path: Path, *, force: bool) -> None:
    """Write the page to ``path``; an existing file that is not a report is replaced only with ``force``."""
    try:
        if not force and path.exists() and GENERATOR.encode() not in path.read_bytes()[:4096]:
            raise UsageError(
                f"{path} already exists and is not a report of sweeper; name another file with "
                "--output, or replace it with --force"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {path}: {error.strerror or error}; see --output"
        ) from error
