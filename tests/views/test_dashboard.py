"""The dashboard: fenced to reads, harmless to workers, clear about what is missing."""

import json
import signal
import socket
import sqlite3
import sys
import urllib.error
import urllib.request
from contextlib import closing
from wsgiref.util import setup_testing_defaults

import pytest
from dashboard_process import running_dashboard
from recorded_studies import database

from sweeper.errors import DatabaseUnavailableError, ExecutionError, UsageError
from sweeper.views.page.dashboard import is_loopback, open_dashboard, site


def answered(method, path, *, host="127.0.0.1:8080", local=True):
    """Return status and headers of a fenced application that lets every page read it."""

    def inner(environ, start_response):
        start_response("200 OK", [("Access-Control-Allow-Origin", "*"), ("X-Other", "kept")])
        return [b"inside"]

    environ = {}
    setup_testing_defaults(environ)
    environ |= {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
    given = []
    body = site(inner, inner, local_only=local)(environ, lambda *words: given.extend(words))
    assert (b"".join(body) == b"inside") is given[0].startswith("200")
    return given[0], dict(given[1])


def ask(method, path, **options):
    return answered(method, path, **options)[0]


def test_no_other_page_may_read_what_is_answered():
    names = {name.lower() for name in answered("GET", "/dashboard")[1]}
    assert "access-control-allow-origin" not in names
    assert {"x-other", "x-content-type-options"} <= names


@pytest.mark.parametrize("words", ["GET /dashboard", "GET /api/studies/1", "HEAD /"])
def test_reads_pass(words):
    assert ask(*words.split()) == "200 OK"


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
def test_what_workers_rely_on_cannot_be_written(words):
    assert ask(*words.split()) == "403 Forbidden"


LOCAL = ("localhost", "localhost:1", "127.0.0.1:99", "[::1]:80")
FOREIGN = ("evil.example", "evil.example:8080", "", "10.0.0.1", "[::2]:80")


@pytest.mark.parametrize("host", [*LOCAL, *FOREIGN])
def test_a_local_dashboard_answers_to_every_name_of_this_machine_and_to_no_other(host):
    assert ask("GET", "/dashboard", host=host) == ("200 OK" if host in LOCAL else "403 Forbidden")
    assert ask("GET", "/dashboard", host=host, local=False) == "200 OK"


def test_loopback_is_distinguished_from_the_rest():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", ""]))


def test_a_file_that_is_no_database_and_one_without_studies_of_sweeper_are_named(tmp_path):
    (tmp_path / "notes.db").write_text("hello " * 100)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (x)")
    for name, said in (("notes", "cannot be opened"), ("other", "holds no studies of sweeper's")):
        with pytest.raises(DatabaseUnavailableError, match=rf"{name}\.db {said}"):
            open_dashboard(f"sqlite:///{tmp_path}/{name}.db", port=0)


def test_a_taken_port_says_what_to_do(tmp_path):
    storage = database(tmp_path / "s.db")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ExecutionError, match=f"port {port}.*--port 0"):
            open_dashboard(storage, port=port)


def test_without_the_extra_the_command_that_installs_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(UsageError, match=r"pip install .*\[dashboard\]'"):
        open_dashboard(f"sqlite:///{tmp_path}/s.db", port=0)


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.whole)]
)
def test_the_url_is_all_of_stdout_it_answers_and_a_signal_ends_it_with_0(tmp_path, how):
    storage = database(tmp_path / "s.db")
    with running_dashboard("--storage", storage, cwd=tmp_path) as (running, url):
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}api/studies", timeout=10) as answer:
            names = [s["study_name"] for s in json.load(answer)["study_summaries"]]
        assert "recorded" in names
        request = urllib.request.Request(f"{url}api/studies/1", method="DELETE")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        running.signal(how)
        assert (running.end(), running.process.stdout.read()) == (0, "")
        assert running.err.endswith(f"{url}sweeper/\nCtrl-C stops it.\n")


def test_beyond_this_machine_it_warns_that_there_is_no_login(tmp_path):
    words = ("--storage", database(tmp_path / "s.db"), "--host", "0.0.0.0")
    with running_dashboard(*words, cwd=tmp_path) as (running, url):
        assert url.startswith("http://")
        running.signal(signal.SIGTERM)
        assert running.end() == 0
    assert "no login" in running.err
