"""The dashboard as its browser meets it: fenced to reads, only what has changed, clear about what is missing."""

import http.client
import json
import math
import signal
import socket
import sqlite3
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from wsgiref.util import setup_testing_defaults

import pytest
from dashboard_process import running_dashboard
from recorded_studies import KEY, NASTY, database, record_unfinished_study

from sweeper.cli.main import main
from sweeper.db.attempts import Ending
from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, WorkerIdentity
from sweeper.records.results import EpochRecord
from sweeper.views.page.dashboard import site

STUDY = "digits"
SEED = 2**62 + 1
"""Of every trial plus its number: no number of a browser's."""
DATA = f"/sweeper/studies/{STUDY}/data.json"


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self):
        return json.loads(self.body)


def asking(url):
    """Return what asks the dashboard at this URL."""

    def ask(path, method="GET", **headers):
        with closing(http.client.HTTPConnection(url.split("/")[2], timeout=10)) as connection:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(answer.status, fields, answer.read())

    return ask


@contextmanager
def recorded(directory, *names):
    """The repository of a new database with unfinished studies, where a command finds it."""
    (directory / "runs").mkdir()
    with Database.open(f"sqlite:///{directory}/runs/sweeper.db", create=True) as opened:
        repository = Repository(opened)
        for name in names:
            record_unfinished_study(repository, name, 8, SEED)
        yield repository


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    with recorded(directory, STUDY, "second"):
        database(directory / "runs" / "sweeper.db")
    return directory


@pytest.fixture(scope="module")
def ask(directory):
    with running_dashboard(cwd=directory) as (_, url):
        yield asking(url)


@pytest.mark.parametrize("page", ["", f"/studies/{STUDY}"])
def test_every_page_allows_a_browser_this_servers_own_files_alone(ask, page):
    answer = ask(f"/sweeper{page}")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for text in (b"<script>", b"<img", b" style="):
        assert text not in answer.body


def test_a_trial_is_the_object_of_show_with_what_the_page_adds(ask, directory):
    with Database.open(f"sqlite:///{directory}/runs/sweeper.db", create=False) as opened:
        repository = Repository(opened)
        trials = [trial.to_json() for trial in repository.trials(STUDY)]
        status = repository.status(STUDY).to_json()
    data = ask(DATA).data
    for trial, record in zip(data["trials"], trials, strict=True):
        for name, value in record.items():
            assert trial[name] == (str(value) if name == "seed" else value), name
        assert set(trial) - set(record) == {
            "target",
            "ignore_checkpoints_through",
            "error",
            "commands",
        }
    assert data["study"] == {name: value for name, value in status.items() if name != "trials"}
    assert data["trials"][0]["seed"] == str(SEED), "a browser's numbers have 53 bits"
    assert data["trials"][2]["error"] == f"ValueError: {NASTY}"
    logs = f"sweeper logs {STUDY} 1"
    assert data["trials"][1]["commands"] == [logs, f"sweeper verify {STUDY} --trial 1"]
    assert f"sweeper retry {STUDY} --failed" in data["commands"]


def running_token(repository):
    query = "SELECT max(id) FROM sweeper_attempts WHERE outcome IS NULL"
    with repository.database._engine.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


def test_a_poll_has_only_what_changed_and_nothing_is_304(tmp_path):
    with (
        recorded(tmp_path, STUDY) as repository,
        running_dashboard(cwd=tmp_path) as (_, url),
    ):
        ask = asking(url)
        first = ask(DATA).data
        assert first["all"]
        assert len(first["trials"]) == 6

        def poll(version):
            return ask(f"{DATA}?since={version}", If_None_Match=f'"{version}"')

        assert poll(first["version"]).status == 304
        assert poll(first["version"]).body == b""
        token = running_token(repository)
        repository.record_epochs(token, [EpochRecord(3, {"loss": 0.25, "nan": math.nan})], {})
        second = poll(first["version"]).data
        assert not second["all"]
        assert [trial["number"] for trial in second["trials"]] == [4]
        new = {"epoch": 3, "loss": 0.25, "nan": None}
        assert second["trials"][0]["epochs"][-1] == new, "NaN is null, as in show"
        assert second["trials"][0] == ask(DATA).data["trials"][4], "it is sent whole"
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
        assert ask(DATA).status == 404
        record_unfinished_study(repository, STUDY, 8, SEED)
        assert poll(third["version"]).data["all"], "a study of the same name is another study"


def test_a_log_is_read_from_its_end(ask, directory):
    log = directory / "runs" / STUDY / "trial-00001" / "attempt-02" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("first line\n" + "x" * 9000 + "\nlast line\n")
    text = ask(f"/sweeper/studies/{STUDY}/trials/1/log.json").data["log"]
    assert text.endswith("last line\n")
    assert "first line" not in text
    assert ask(f"/sweeper/studies/{STUDY}/trials/0/log.json").data == {"log": ""}


def test_all_studies_are_listed_the_newest_first(ask):
    page = ask("/sweeper/").body.decode()
    second = page.index("/sweeper/studies/second")
    first = page.index(f"/sweeper/studies/{STUDY}")
    assert second < first
    assert "trials finished" in page[first:]
    assert "best: trial 1 with" in page[first:]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("studies/none", "no study"),
        ("studies/none/data.json", "no study"),
        (f"studies/{STUDY}/trials/99/log.json", "99"),
        ("nothing", "There is no page /sweeper/nothing"),
        ("static/secret.txt", "no file secret.txt"),
        ("studies/%3Cb%3Ex", "no study"),
    ],
)
def test_what_is_not_there_says_what_to_do(ask, path, message):
    answer = ask(f"/sweeper/{path}")
    assert answer.status == 404
    assert message in answer.body.decode()
    assert "<b>" not in answer.body.decode()
    assert "sweeper ls" in answer.body.decode()


def test_a_head_has_the_headers_alone_and_what_a_browser_has_is_not_sent_again(ask):
    answer = ask(DATA, "HEAD")
    assert answer.body == b""
    assert int(answer.headers["content-length"]) > 1000
    for path in ("/sweeper/", "/sweeper/static/page.js"):
        tag = ask(path).headers["etag"]
        assert ask(path, If_None_Match=tag).status == 304


def test_importances_come_with_the_study(ask):
    data = ask("/sweeper/studies/recorded/data.json").data
    assert data["importance"]["objective"] == "score"
    assert abs(sum(share for _, share in data["importance"]["shares"]) - 1) < 1e-9


@pytest.mark.parametrize("path", ["/dashboard", "/api/studies/1", "/sweeper", "/sweeper/"])
def test_reads_pass_and_all_that_is_not_ours_is_the_dashboards(ask, path):
    answer = ask(path)
    assert answer.status == 200
    is_own = "default-src 'none'" in answer.headers.get("content-security-policy", "")
    assert is_own is path.startswith("/sweeper")


@pytest.mark.parametrize(
    "words",
    [
        "DELETE /api/studies/1",
        "POST /api/studies",
        "POST /api/studies/1/rename",
        "POST /api/trials/1/tell",
        "POST /api/trials/1/user-attrs",
        "POST /api/studies/1/2/skip",
        "PUT /api/studies/1/preference_feedback_component",
        "PUT /api/studies/1/note",
        "PUT /api/studies/1/25/note",
        "POST /incompatible-rdb-schema",
        "POST /sweeper/studies/digits",
        "PATCH /sweeper/studies/digits",
    ],
)
def test_what_workers_rely_on_cannot_be_written(ask, words):
    method, path = words.split()
    assert ask(path, method).status == 403


LOCAL = ("localhost", "localhost:1", "127.0.0.1:99", "[::1]:80")
FOREIGN = ("evil.example", "evil.example:8080", "", "10.0.0.1", "[::2]:80")


@pytest.mark.parametrize("host", [*LOCAL, *FOREIGN])
def test_a_local_dashboard_answers_to_every_name_of_this_machine_and_to_no_other(ask, host):
    assert ask("/dashboard", Host=host).status == (200 if host in LOCAL else 403)


def test_no_other_page_may_read_what_is_answered():
    def inner(environ, start_response):
        start_response("200 OK", [("Access-Control-Allow-Origin", "*"), ("X-Other", "kept")])

    environ = {}
    response = []
    setup_testing_defaults(environ)
    site(inner, inner, local_only=True)(environ, lambda *words: response.extend(words))
    names = {name.lower() for name, _ in response[1]}
    assert "access-control-allow-origin" not in names
    assert {"x-other", "x-content-type-options"} <= names


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("notes", "cannot be opened"),
        ("other", "holds no studies of sweeper's"),
        ("runs/sweeper", "a free one with --port 0"),
        ("runs/sweeper", "[dashboard]'"),
    ],
)
def test_what_keeps_it_from_starting_is_said(file, message, directory, monkeypatch, capsys):
    (directory / "notes.db").write_text("hello " * 100)
    with closing(sqlite3.connect(directory / "other.db")) as other:
        other.execute("CREATE TABLE IF NOT EXISTS t (x)")
    if "[dashboard]" in message:
        monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        words = ("--storage", f"sqlite:///{directory}/{file}.db")
        assert main(["dashboard", *words, "--port", str(taken.getsockname()[1])]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.whole)]
)
def test_the_url_is_all_of_stdout_and_a_signal_ends_it_with_0(directory, signum):
    with running_dashboard(cwd=directory) as (running, url):
        assert url.startswith("http://127.0.0.1:")
        names = [s["study_name"] for s in asking(url)("/api/studies").data["study_summaries"]]
        assert "recorded" in names
        running.signal(signum)
        assert (running.end(), running.process.stdout.read()) == (0, "")
        assert running.err.endswith(f"{url}sweeper/\nCtrl-C stops it.\n")


def test_beyond_this_machine_it_answers_to_all_and_warns_that_there_is_no_login(directory):
    with running_dashboard("--host", "0.0.0.0", cwd=directory) as (running, url):
        assert all(asking(url)("/dashboard", Host=host).status == 200 for host in FOREIGN)
        running.signal(signal.SIGTERM)
        assert running.end() == 0
    assert "no login" in running.err
