"""The page as it is answered: its data, only what has changed, read-only, without another server's word."""

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from wsgiref.util import setup_testing_defaults

import pytest
from recorded_studies import KEY, NASTY, database, record_unfinished_study

from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, WorkerIdentity
from sweeper.records.results import EpochRecord
from sweeper.views.page.dashboard import PageApplication, site
from sweeper.views.page.payload import Advice

ADVICE = Advice(
    lambda status: [f"sweeper resume {status.study}"],
    lambda trial: [f"sweeper logs {trial.study} {trial.number}"],
)
STUDY = "digits"
SEED = 2**62 + 1
"""Of every trial plus its number: no number of a browser's."""
PAGES = ("", f"/studies/{STUDY}")
DATA = f"/studies/{STUDY}/data.json"


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self):
        return json.loads(self.body)


Ask = Callable[..., Answered]


def write_study(repository, name=STUDY):
    record_unfinished_study(repository, name, 8, SEED)


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('pages')}/sweeper.db"
    with Database.open(url, create=True) as database:
        write_study(Repository(database))
        write_study(Repository(database), "second")
    return url


@pytest.fixture(scope="module")
def opening():
    """Gives what answers the requests of a database's studies."""
    with ExitStack() as stack:

        def opened(url, *more):
            return asking(Repository(stack.enter_context(Database.open(url, create=False))), *more)

        yield opened


@pytest.fixture(scope="module")
def ask(storage, opening):
    return opening(storage)


def asking(repository, runs_dir=None):
    application = PageApplication(repository, ADVICE, runs_dir)

    def ask(path, method="GET", **headers):
        environ = {}
        setup_testing_defaults(environ)
        path, _, query = path.partition("?")
        environ |= {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, **headers}
        answered = []
        body = b"".join(application(environ, lambda *given: answered.extend(given) or print))
        return Answered(int(answered[0].partition(" ")[0]), dict(answered[1]), body)

    return ask


@pytest.mark.parametrize("page", PAGES)
def test_every_page_allows_a_browser_this_servers_own_files_alone(ask, page):
    found = ask(f"/sweeper{page}")
    assert found.status == 200
    policy = found.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert b"<script>" not in found.body
    assert b"<img" not in found.body
    assert b" style=" not in found.body


def test_a_trial_is_the_object_of_show_with_what_the_page_adds(ask, storage):
    with Database.open(storage, create=False) as database:
        repository = Repository(database)
        shown = [trial.to_json() for trial in repository.trials(STUDY)]
        status = repository.status(STUDY).to_json()
    data = ask(f"/sweeper{DATA}").data
    for trial, record in zip(data["trials"], shown, strict=True):
        for name, value in record.items():
            assert trial[name] == (str(value) if name == "seed" else value), name
        assert set(trial) - set(record) == {"target", "anew_after", "error", "commands"}
    assert data["study"] == {name: value for name, value in status.items() if name != "trials"}
    assert data["trials"][0]["seed"] == str(SEED), "a browser's numbers have 53 bits"
    assert data["trials"][2]["error"] == f"ValueError: {NASTY}"
    assert data["trials"][1]["commands"] == [f"sweeper logs {STUDY} 1"]
    assert data["commands"] == [f"sweeper resume {STUDY}"]


def running_token(repository):
    query = "SELECT max(id) FROM sweeper_attempts WHERE outcome IS NULL"
    with repository.database._engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


def test_a_poll_has_only_what_changed_and_nothing_is_304(tmp_path, opening):
    url = f"sqlite:///{tmp_path}/s.db"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        write_study(repository)
        ask = opening(url)
        first = ask(f"/sweeper{DATA}").data
        assert first["all"]
        assert len(first["trials"]) == 6

        def poll(version):
            return ask(f"/sweeper{DATA}?since={version}", HTTP_IF_NONE_MATCH=f'"{version}"')

        assert poll(first["version"]).status == 304
        assert poll(first["version"]).body == b""
        token = running_token(repository)
        repository.record_epochs(token, [EpochRecord(3, {"loss": 0.25, "nan": math.nan})], {})
        second = poll(first["version"]).data
        assert not second["all"]
        assert [trial["number"] for trial in second["trials"]] == [4]
        new = {"epoch": 3, "loss": 0.25, "nan": None}
        assert second["trials"][0]["epochs"][-1] == new, "NaN is null, as in show"
        assert second["trials"][0] == opening(url)(f"/sweeper{DATA}").data["trials"][4], (
            "a trial that has changed is sent whole"
        )
        repository.finish(token, Ending("complete", 40, 0.99, "d" * 32))
        new = repository.claim(STUDY, WorkerIdentity.here(), lambda number: number)
        assert isinstance(new, Claim)
        third = poll(second["version"]).data
        assert {trial["number"] for trial in third["trials"]} == {4, new.number}
        assert third["study"]["complete"] == first["study"]["complete"] + 1
        # A page that missed a poll gets both changes, and one of another dashboard everything.
        assert {t["number"] for t in poll(first["version"]).data["trials"]} == {4, new.number}
        assert poll("another-1").data["all"]
        repository.record_verdict(
            STUDY, 1, {"mode": "replay", "verdict": "holds", "message": "identical"}
        )
        assert [t["number"] for t in poll(third["version"]).data["trials"]] == [1]
        repository.finish(new.token, Ending("complete", 40, 0.5, "e" * 32))
        repository.leave(KEY)
        repository.delete_study(STUDY)
        assert ask(f"/sweeper{DATA}").status == 404
        write_study(repository)
        assert poll(third["version"]).data["all"], "a study of the same name is another study"


def test_a_log_is_read_from_its_end(tmp_path, storage, opening):
    log = tmp_path / STUDY / "trial-00001" / "attempt-02" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("first line\n" + "x" * 9000 + "\nlast line\n")
    ask = opening(storage, tmp_path)
    found = ask(f"/sweeper/studies/{STUDY}/trials/1/log.json").data["log"]
    assert found.endswith("last line\n")
    assert "first line" not in found
    assert ask(f"/sweeper/studies/{STUDY}/trials/0/log.json").data == {"log": ""}


def test_all_studies_are_listed_the_newest_first(ask):
    found = ask("/sweeper/").body.decode()
    second, first = found.index("/sweeper/studies/second"), found.index(f"/sweeper/studies/{STUDY}")
    assert second < first
    assert "trials finished" in found[first:]
    assert "best: trial 1 with" in found[first:]
    tag = ask("/sweeper/").headers["ETag"]
    assert ask("/sweeper/", HTTP_IF_NONE_MATCH=tag).status == 304


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/sweeper/studies/none", "no study"),
        ("/sweeper/studies/none/data.json", "no study"),
        (f"/sweeper/studies/{STUDY}/trials/99/log.json", "99"),
        ("/sweeper/nothing", "There is no page /sweeper/nothing"),
        ("/sweeper/static/secret.txt", "no file secret.txt"),
        ("/sweeper/studies/<b>x", "no study"),
    ],
)
def test_what_is_not_there_says_what_to_do(ask, path, said):
    found = ask(path)
    assert found.status == 404
    assert said in found.body.decode()
    assert "<b>" not in found.body.decode()
    assert "sweeper ls" in found.body.decode()


def test_a_head_has_the_headers_alone_and_what_a_browser_has_is_not_sent_again(ask):
    found = ask(f"/sweeper{DATA}", "HEAD")
    assert found.body == b""
    assert int(found.headers["Content-Length"]) > 1000
    tag = ask("/sweeper/static/page.js").headers["ETag"]
    assert ask("/sweeper/static/page.js", HTTP_IF_NONE_MATCH=tag).status == 304


def test_all_that_is_not_ours_is_the_dashboards():
    def answer(name):
        return lambda environ, start_response: [name]

    both = site(answer(b"optuna"), answer(b"page"), local_only=False)
    for path, name in (
        ("/", b"optuna"),
        ("/sweeper", b"page"),
        ("/sweeper/x", b"page"),
        ("/sweepers", b"optuna"),
    ):
        assert both({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, None) == [name]


def test_importances_come_with_the_study(tmp_path, opening):
    found = opening(database(tmp_path / "s.db"))("/sweeper/studies/recorded/data.json").data
    assert found["importance"]["objective"] == "score"
    assert abs(sum(share for _, share in found["importance"]["shares"]) - 1) < 1e-9
