"""Our own pages as they are answered: escaped, read-only, without a word of another server's."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from dashboard_process import make_study
from page_tables import tables_of
from recorded_studies import database
from written_study import ERROR, KIND, SEED, STUDY, write_study

from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.views.dashboard.server import OpenedRepository
from sweeper.views.dashboard.site import PagesApplication, mounted
from sweeper.views.pages.content import Advice

ADVICE = Advice(
    lambda status: [f"sweeper resume {status.study}"],
    lambda trial: [f"sweeper logs {trial.study} {trial.number}"],
)


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """What a reader sees of the page, in one line."""
        parser = _Texts()
        parser.feed(self.body.decode())
        return " ".join(" ".join(parser.found).split())


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.found.append(data)


Ask = Callable[..., Answered]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('pages')}/sweeper.db"
    with Database.open(url, create=True) as database:
        write_study(Repository(database))
        write_study(Repository(database), "second", trials=5)
    return url


@pytest.fixture(scope="module")
def ask(storage: str) -> Iterator[Ask]:
    repository = OpenedRepository(storage)
    yield asking(repository)
    repository.close()


def asking(repository: OpenedRepository) -> Ask:
    application = PagesApplication(repository, ADVICE)

    def ask(path: str, method: str = "GET", **headers: str) -> Answered:
        environ: dict[str, Any] = {}
        setup_testing_defaults(environ)
        environ |= {"REQUEST_METHOD": method, "PATH_INFO": path, **headers}
        answered: list[Any] = []
        body = b"".join(application(environ, lambda *given: answered.extend(given) or print))  # type: ignore[arg-type, func-returns-value]
        return Answered(int(answered[0].partition(" ")[0]), dict(answered[1]), body)

    return ask


PAGES = ("", f"/studies/{STUDY}", f"/studies/{STUDY}/trials/0", f"/studies/{STUDY}/trials/2")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_allows_a_browser_this_servers_own_files_alone(ask: Ask, page: str) -> None:
    answer = ask(f"/sweeper{page}")
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]* src=)", answer.body.decode())
    assert not re.search(r" style=| on\w+=|https?://", answer.body.decode())


@pytest.mark.parametrize("page", PAGES)
def test_what_users_wrote_is_text_on_every_page(ask: Ask, page: str) -> None:
    body = ask(f"/sweeper{page}").body.decode()
    parser = _Texts()
    parser.feed(body)
    assert "b" not in parser.tags
    assert body.count("<script") == body.count('<script src="/sweeper/static/')


def test_a_study_is_shown_whole(ask: Ask) -> None:
    text = ask(f"/sweeper/studies/{STUDY}").text
    for said in (
        "maximize val_accuracy",
        "3 of 6 trials done",
        "complete 2 running 1 interrupted 1 failed 1 waiting 1",
        "Running trials trial epochs finished val_accuracy attempt 4 3 of 4",
        "What to type next",
        f"sweeper resume {STUDY}",
        "exactness:",
        "at work",
        "seed 7",
        "interrupted: it was asked to stop",
        ERROR.splitlines()[-1],
    ):
        assert said in text, said
    assert html.escape(KIND, quote=False) in ask(f"/sweeper/studies/{STUDY}").body.decode()


def test_a_studys_page_and_its_report_have_the_same_tables(tmp_path: Path) -> None:
    url, path = database(tmp_path / "recorded.db"), tmp_path / "report.html"
    assert main(["report", "recorded", "--storage", url, "--output", str(path)]) == 0
    repository = OpenedRepository(url)
    served = tables_of(asking(repository)("/sweeper/studies/recorded").body.decode())
    repository.close()
    assert len(served) >= 9
    assert served == tables_of(path.read_text())


def test_a_trial_is_shown_with_every_attempt(ask: Ask) -> None:
    text = ask(f"/sweeper/studies/{STUDY}/trials/0").text
    for said in (
        "of work in 2 attempts",
        "of pauses between them",
        "20 (resumed)",
        "interrupted: it was asked to stop, and wrote a checkpoint",
        str(SEED),
        "a" * 32,
        f"sweeper logs {STUDY} 0",
        "/runs/digits/trial-00000/attempt-02/checkpoints/step-000000040",
    ):
        assert said in text, said
    assert "ValueError" in ask(f"/sweeper/studies/{STUDY}/trials/2").text


def test_only_what_changes_by_itself_is_kept_up_to_date(ask: Ask) -> None:
    assert b"data-refresh" in ask(f"/sweeper/studies/{STUDY}").body
    assert b"data-refresh" in ask(f"/sweeper/studies/{STUDY}/trials/4").body
    assert b"data-refresh" not in ask(f"/sweeper/studies/{STUDY}/trials/0").body


def test_the_curves_have_a_line_where_the_attempt_went_on(ask: Ask) -> None:
    figure = json.loads(ask(f"/sweeper/studies/{STUDY}/trials/0/figures/trial-curves.json").body)
    assert [(line["x0"], line["x1"]) for line in figure["layout"]["shapes"]] == [(2, 2)]
    assert "attempt 2 resumes at step 20" in figure["layout"]["annotations"][0]["text"]
    shown = {trace["name"] for trace in figure["data"] if trace["visible"] is True}
    assert shown == {"val_accuracy", "accuracy"}
    whole = json.loads(ask(f"/sweeper/studies/{STUDY}/trials/1/figures/trial-curves.json").body)
    assert not whole["layout"].get("shapes")


@pytest.mark.parametrize("figure", ["learning-curves", "parallel-coordinates", "attempts"])
def test_a_studys_figures_are_plain_json(ask: Ask, figure: str) -> None:
    answer = ask(f"/sweeper/studies/{STUDY}/figures/{figure}.json")
    assert answer.headers["Content-Type"] == "application/json"
    assert json.loads(answer.body)["data"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nothing", "There is no page /sweeper/nothing here"),
        ("/studies/digit", "did you mean 'digits'"),
        (f"/studies/{STUDY}/trials/99", "it has trials 0 to 4"),
        (f"/studies/{STUDY}/trials/x", "There is no page"),
        (
            f"/studies/{STUDY}/figures/other.json",
            "there are: learning-curves, parallel-coordinates, attempts",
        ),
        ("/static/../site.py", "There is no page"),
        ("/static/site.py", "There is no file site.py"),
        ("/studies/<script>", "There is no study"),
    ],
)
def test_what_is_not_there_says_what_to_do(ask: Ask, path: str, said: str) -> None:
    answer = ask(f"/sweeper{path}")
    assert answer.status == 404
    assert said.removeprefix("There is no study") in answer.text
    assert "sweeper ls lists those that there are" in answer.text
    assert b"<script>" not in answer.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_sent(ask: Ask, method: str) -> None:
    assert ask("/sweeper/", method).status == 405


def test_a_head_has_the_headers_alone(ask: Ask) -> None:
    answer = ask("/sweeper/", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


def test_what_a_browser_has_is_not_sent_again(ask: Ask) -> None:
    path = "/sweeper/static/plotly.min.js"
    first = ask(path)
    assert first.status == 200
    again = ask(path, HTTP_IF_NONE_MATCH=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert ask(path, HTTP_IF_NONE_MATCH='"other"').status == 200


def test_a_database_of_optunas_alone_says_what_is_missing(tmp_path: Path) -> None:
    repository = OpenedRepository(make_study(tmp_path / "s.db"))
    answer = asking(repository)("/sweeper/")
    repository.close()
    assert answer.status == 503
    assert "sweeper run FILE" in answer.text


def test_all_that_is_not_ours_is_the_dashboards() -> None:
    def naming(name: str) -> Any:
        return lambda environ, start: [name.encode()]

    both: Any = mounted(naming("dashboard"), naming("ours"))
    answers = {
        path: both({"PATH_INFO": path}, print)[0].decode()
        for path in ("/", "/dashboard", "/api/studies/1", "/sweeper", "/sweeper/x", "/sweeperx")
    }
    assert {path for path, who in answers.items() if who == "ours"} == {"/sweeper", "/sweeper/x"}
