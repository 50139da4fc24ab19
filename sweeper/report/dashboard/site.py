"""Our own pages below ``/sweeper/``: what each address answers, and with which headers.

Only GET and HEAD are answered. Names, parameters and errors come from users: every page is escaped by
Jinja, and a strict policy (no script or style but this server's own files) holds if one was not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2
import xxhash

from sweeper.errors import StorageError, UnknownStudyError
from sweeper.report import formats
from sweeper.report.dashboard.advice import Advice
from sweeper.report.dashboard.curves import trial_curves
from sweeper.report.dashboard.pages import index_page, study_page, trial_page
from sweeper.report.dashboard.plots import plain_json
from sweeper.report.dashboard.wording import POLICY, clock_text, moment_text
from sweeper.report.figures import attempts_timeline, learning_curves
from sweeper.report.rungs import compared_text, decision_text, promoted_text
from sweeper.results import StudyResults
from sweeper.storage.repository import Repository

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PREFIX = "/sweeper"

_NAME = r"(?P<name>[^/]{1,120})"
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_OWN_STYLE = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')
"""How plotly.js looks whether the style for maps is there, which it would add and the policy refuse."""

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "plotly.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plotly.min.js": "text/javascript; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with."""

    body: bytes
    kind: str = _HTML
    status: HTTPStatus = HTTPStatus.OK
    lasting: bool = False


class PagesApplication:
    """The WSGI application of our own pages.

    Args:
        repository: Gives the repository, or raises why there is none.
        advice: What to type next.
    """

    def __init__(self, repository: Callable[[], Repository], advice: Advice) -> None:
        self._repository = repository
        self._advice = advice
        self._routes: tuple[tuple[re.Pattern[str], Callable[..., Answer]], ...] = (
            (re.compile(r"/?"), self._index),
            (re.compile(rf"/studies/{_NAME}/?"), self._study),
            (re.compile(rf"/studies/{_NAME}/figures/(?P<figure>[a-z-]+)\.json"), self._figure),
            (re.compile(rf"/studies/{_NAME}/trials/(?P<number>\d{{1,9}})/?"), self._trial),
            (
                re.compile(rf"/studies/{_NAME}/trials/(?P<number>\d{{1,9}})/curves\.json"),
                self._curves,
            ),
            (re.compile(r"/static/(?P<file>[a-z.]+)"), self._static),
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._answer(environ)
        tag = f'"{xxhash.xxh3_128_hexdigest(answer.body)}"'
        headers = [
            ("Content-Security-Policy", POLICY),
            ("Cache-Control", "max-age=86400" if answer.lasting else "no-cache"),
            ("ETag", tag),
        ]
        if answer.status is HTTPStatus.OK and environ.get("HTTP_IF_NONE_MATCH") == tag:
            start_response("304 Not Modified", headers)
            return []
        headers += [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status.value} {answer.status.phrase}", headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [answer.body]

    def _answer(self, environ: WSGIEnvironment) -> Answer:
        if environ.get("REQUEST_METHOD") not in {"GET", "HEAD"}:
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED, "These pages are for reading only.")
        # WSGI has the path as Latin-1 text of its UTF-8 bytes.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        path = path.removeprefix(PREFIX)
        try:
            for pattern, answer in self._routes:
                found = pattern.fullmatch(path)
                if found is not None:
                    return answer(**found.groupdict())
        except UnknownStudyError as error:
            return _problem(HTTPStatus.NOT_FOUND, _sentence(error))
        except StorageError as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, _sentence(error))
        return _problem(HTTPStatus.NOT_FOUND, f"There is no page {PREFIX}{path[:200]} here.")

    def _index(self) -> Answer:
        repository = self._repository()
        return _page("index.html", page=index_page(repository.statuses(), _ids(repository)))

    def _study(self, name: str) -> Answer:
        repository = self._repository()
        results = StudyResults(repository.status(name), repository.trials(name))
        page = study_page(
            results,
            repository.study(name),
            workers=repository.workers(name),
            optuna_id=_ids(repository)[name],
            commands=self._advice.study(results.status),
            now=datetime.now(UTC),
        )
        return _page("study.html", page=page)

    def _trial(self, name: str, number: str) -> Answer:
        repository = self._repository()
        trial, row = repository.trial(name, int(number)), repository.study(name)
        page = trial_page(
            trial,
            row,
            branches=repository.branches.begun_from(name, trial.number),
            optuna_id=_ids(repository)[name],
            commands=self._advice.trial(trial),
            now=datetime.now(UTC),
        )
        return _page("trial.html", page=page)

    def _figure(self, name: str, figure: str) -> Answer:
        figures: dict[str, Callable[[StudyResults], Any]] = {
            "learning-curves": learning_curves,
            "attempts": lambda results: attempts_timeline(results, now=datetime.now(UTC)),
        }
        if figure not in figures:
            return _problem(
                HTTPStatus.NOT_FOUND, f"There is no figure {figure}; it is one of {list(figures)}."
            )
        repository = self._repository()
        results = StudyResults(repository.status(name), repository.trials(name))
        return _json(plain_json(figures[figure](results)))

    def _curves(self, name: str, number: str) -> Answer:
        repository = self._repository()
        trial, row = repository.trial(name, int(number)), repository.study(name)
        return _json(plain_json(trial_curves(trial, row.objective, datetime.now(UTC))))

    def _static(self, file: str) -> Answer:
        if file not in _STATIC:
            return _problem(HTTPStatus.NOT_FOUND, f"There is no file {file} here.")
        return Answer(_static_file(file), _STATIC[file], lasting=file == "plotly.min.js")


def mounted(dashboard: WSGIApplication, pages: WSGIApplication) -> WSGIApplication:
    """One application of both: our pages below ``/sweeper``, all else the dashboard's."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        ours = path == PREFIX or path.startswith(f"{PREFIX}/")
        return (pages if ours else dashboard)(environ, start_response)

    return application


def _ids(repository: Repository) -> dict[str, int]:
    return dict(repository.annotations.optuna_ids())


def _page(template: str, status: HTTPStatus = HTTPStatus.OK, **context: Any) -> Answer:
    return Answer(_templates().get_template(template).render(**context).encode(), status=status)


def _problem(status: HTTPStatus, message: str) -> Answer:
    return _page("problem.html", status, title=status.phrase, message=message)


def _json(value: object) -> Answer:
    return Answer(json.dumps(value).encode(), _JSON)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sweeper.report.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "value": lambda value: formats.value_text(value, 6),
        "time": formats.time_text,
        "size": formats.size_text,
        "params": formats.params_text,
        "decision": decision_text,
        "compared": compared_text,
        "promoted": promoted_text,
        "moment": moment_text,
        "clock": clock_text,
        "name_in_url": lambda name: quote(name, safe=""),
    }
    environment.globals |= {
        "prefix": PREFIX,
        "plotly_version": version("plotly"),
        "plotly_styles": [
            each.decode() for each in _OWN_STYLE.findall(_static_file("plotly.min.js"))
        ],
    }
    return environment


@cache
def _static_file(file: str) -> bytes:
    if file == "plotly.min.js":
        return (files("plotly") / "package_data" / file).read_bytes()
    return (files("sweeper.report.dashboard") / "static" / file).read_bytes()
