"""Sweeper's own pages below ``/sweeper/``: addresses, answers and headers.

Only GET and HEAD are answered. Names, parameters and errors come from users: Jinja escapes every
page, and a strict Content Security Policy allows only scripts and styles of this server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import xxhash

from sweeper.db.repository import Repository
from sweeper.errors import StorageError, UnknownStudyError
from sweeper.records.results import StudyResults
from sweeper.views.pages.content import Advice, Link, Page, Picture, Section
from sweeper.views.pages.pictures import pictures_of
from sweeper.views.pages.report import POLICY, asset, plain_json, read_shown, served
from sweeper.views.pages.study import Frame, index_page, study_page
from sweeper.views.pages.tables import most_epochs
from sweeper.views.pages.trial import trial_page

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PREFIX = "/sweeper"

_NAME = r"(?P<name>[^/]{1,120})"
_FIGURE = r"figures/(?P<figure>[a-z0-9-]+)\.json"
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "plotly.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plotly.min.js": "text/javascript; charset=utf-8",
}


_WHAT_IS_HERE = (
    "The links above lead to all studies of this database and to optuna-dashboard. A study begins to be "
    "shown here once sweeper run FILE has started it; sweeper ls lists those that there are."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request."""

    body: bytes
    kind: str = _HTML
    status: HTTPStatus = HTTPStatus.OK
    lasting: bool = False


class PagesApplication:
    """The WSGI application of sweeper's own pages."""

    def __init__(self, repository: Callable[[], Repository], advice: Advice) -> None:
        self._repository = repository
        self._advice = advice
        self._routes: tuple[tuple[re.Pattern[str], Callable[..., Answer]], ...] = (
            (re.compile(r"/?"), self._index),
            (re.compile(rf"/studies/{_NAME}/?"), self._study),
            (re.compile(rf"/studies/{_NAME}/{_FIGURE}"), self._figure),
            (re.compile(rf"/studies/{_NAME}/trials/(?P<number>\d{{1,9}})/?"), self._trial),
            (re.compile(rf"/studies/{_NAME}/trials/(?P<number>\d{{1,9}})/{_FIGURE}"), self._curves),
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
        ids = repository.annotations.optuna_ids()
        return _page(index_page(repository.statuses(), ids, _study_at, _trial_at))

    def _study(self, name: str) -> Answer:
        repository = self._repository()
        shown = replace(
            read_shown(repository, name, datetime.now(UTC)),
            address=partial(_trial_at, name),
            workers=repository.workers(name),
        )
        frame = Frame(
            tuple((command, "") for command in self._advice.study(shown.results.status)),
            "What to type next",
            served=True,
            elsewhere=Link(
                "this study in optuna-dashboard", _in_optuna_dashboard(repository, name)
            ),
        )
        pictures = _pictures(shown.results) if shown.results.trials else ()
        return _page(study_page(shown, pictures, frame), _study_at(name))

    def _trial(self, name: str, number: str) -> Answer:
        page = self._trial_page(name, int(number))
        return _page(page, _trial_at(name, int(number)))

    def _trial_page(self, name: str, number: int) -> Page:
        repository = self._repository()
        trial, row = repository.trial(name, number), repository.study(name)
        shown_at = f"{_in_optuna_dashboard(repository, name)}/trials?numbers={number}"
        return trial_page(
            trial,
            row.objective,
            now=datetime.now(UTC),
            most=most_epochs(row),
            commands=self._advice.trial(trial),
            study=Link(name, _study_at(name)),
            elsewhere=Link("this trial in optuna-dashboard", shown_at),
        )

    def _figure(self, name: str, figure: str) -> Answer:
        return _drawn(_pictures(self._repository().results(name)), figure)

    def _curves(self, name: str, number: str, figure: str) -> Answer:
        return _drawn(self._trial_page(name, int(number)).pictures, figure)

    def _static(self, file: str) -> Answer:
        if file not in _STATIC:
            return _problem(HTTPStatus.NOT_FOUND, f"There is no file {file} here.")
        return Answer(asset(file).encode(), _STATIC[file], lasting=file == "plotly.min.js")


def mounted(dashboard: WSGIApplication, pages: WSGIApplication) -> WSGIApplication:
    """Return one application: sweeper's pages below ``/sweeper``, and the dashboard for all other paths."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        ours = path == PREFIX or path.startswith(f"{PREFIX}/")
        return (pages if ours else dashboard)(environ, start_response)

    return application


def _in_optuna_dashboard(repository: Repository, study: str) -> str:
    return f"/dashboard/studies/{repository.annotations.optuna_ids()[study]}"


def _study_at(name: str) -> str:
    return f"{PREFIX}/studies/{quote(name, safe='')}"


def _trial_at(name: str, number: int) -> str:
    return f"{_study_at(name)}/trials/{number}"


def _pictures(results: StudyResults) -> tuple[Picture, ...]:
    """Return a study's figures, without those that take too long for every request."""
    return pictures_of(results, now=datetime.now(UTC), importances=False)


def _drawn(pictures: Sequence[Picture], key: str) -> Answer:
    found = {picture.key: picture for picture in pictures}
    if key not in found:
        known = ", ".join(found) or "none"
        return _problem(HTTPStatus.NOT_FOUND, f"There is no figure {key} here; there are: {known}.")
    return Answer(json.dumps(plain_json(found[key].draw())).encode(), _JSON)


def _page(page: Page, address: str = "", status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(served(page, PREFIX, address).encode(), status=status)


def _problem(status: HTTPStatus, message: str) -> Answer:
    words = (message, _WHAT_IS_HERE)
    sections = (Section("problem", status.phrase, words),)
    return _page(Page(status.phrase, "There is nothing to show", sections=sections), "", status)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
