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
from dashboard_process import Dashboard, make_study
from sweeps import RunningCommand

from sweeper.errors import DatabaseUnavailableError, ExecutionError, StorageError, UsageError
from sweeper.views.page.dashboard import fenced, is_loopback, open_dashboard


def test_no_other_page_may_read_what_is_answered():
    def open_to_all(environ, start_response):
        del environ
        start_response("200 OK", [("Access-Control-Allow-Origin", "*"), ("X-Other", "kept")])
        return [b""]

    environ = {}
    setup_testing_defaults(environ)
    sent = []
    application = fenced(open_to_all, local_only=True)
    application(environ, lambda status, headers, *_: sent.extend(headers))
    names = {name.lower() for name, _ in sent}
    assert "access-control-allow-origin" not in names
    assert {"x-other", "x-content-type-options"} <= names


def inner(environ, start_response):
    del environ
    start_response("200 OK", [])
    return [b"inside"]


def ask(method, path, *, host="127.0.0.1:8080", local=True):
    """Return the status that a fenced application answers with."""
    environ = {}
    setup_testing_defaults(environ)
    environ |= {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
    answered = []

    def start_response(status, headers):
        del headers
        answered.append(status)

    application = fenced(inner, local_only=local)
    body = b"".join(application(environ, start_response))
    assert (body == b"inside") is answered[0].startswith("200")
    return answered[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/dashboard"),
        ("GET", "/api/studies/1"),
        ("HEAD", "/"),
    ],
)
def test_reads_pass(method, path):
    assert ask(method, path) == "200 OK"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/studies/1"),
        ("POST", "/api/studies"),
        ("POST", "/api/studies/1/rename"),
        ("POST", "/api/trials/1/tell"),
        ("POST", "/api/trials/1/user-attrs"),
        ("POST", "/api/studies/1/2/skip"),
        ("PUT", "/api/studies/1/preference_feedback_component"),
        ("PUT", "/api/studies/1/note"),
        ("PUT", "/api/studies/1/25/note"),
        ("POST", "/incompatible-rdb-schema"),
        ("POST", "/sweeper/studies/digits"),
        ("PATCH", "/sweeper/studies/digits"),
    ],
)
def test_what_workers_rely_on_cannot_be_written(method, path):
    assert ask(method, path) == "403 Forbidden"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "", "10.0.0.1", "[::2]:80"])
def test_a_local_dashboard_answers_to_local_names_only(host):
    assert ask("GET", "/dashboard", host=host) == "403 Forbidden"
    assert ask("GET", "/dashboard", host=host, local=False) == "200 OK"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:99", "[::1]:80"])
def test_every_name_of_this_machine_is_local(host):
    assert ask("GET", "/dashboard", host=host) == "200 OK"


def test_loopback_is_distinguished_from_the_rest():
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", ""]))


def test_a_database_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(DatabaseUnavailableError, match="there is no database"):
        open_dashboard(f"sqlite:///{tmp_path}/no.db", port=0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "x.db").write_text("hello " * 100)
    with pytest.raises(DatabaseUnavailableError, match=r"x\.db cannot be read"):
        open_dashboard(f"sqlite:///{tmp_path}/x.db", port=0)


def test_a_database_without_studies_of_optuna_is_named(tmp_path):
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
    with pytest.raises(DatabaseUnavailableError, match=r"x\.db cannot be shown"):
        open_dashboard(f"sqlite:///{tmp_path}/x.db", port=0)


def test_a_database_with_a_rollback_log_is_refused_and_wal_is_not(tmp_path):
    storage = make_study(tmp_path / "old.db", wal=False)
    with pytest.raises(StorageError, match=r"journal mode 'delete'.*expected 'wal'"):
        open_dashboard(storage, port=0)
    with closing(sqlite3.connect(tmp_path / "old.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
    server = open_dashboard(storage, port=0)
    server.close()


def test_a_taken_port_says_what_to_do(tmp_path):
    storage = make_study(tmp_path / "s.db")
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
    storage = make_study(tmp_path / "s.db")
    with Dashboard(storage, "--port", "0") as dashboard:
        assert dashboard.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{dashboard.url}api/studies", timeout=10) as answer:
            names = [s["study_name"] for s in json.load(answer)["study_summaries"]]
        assert names == ["digits"]
        request = urllib.request.Request(f"{dashboard.url}api/studies/1", method="DELETE")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        code, out, err = dashboard.stop(how)
        assert (code, out) == (0, "")
        assert err.endswith(f"{dashboard.url}sweeper/\nCtrl-C stops it.\n")


def test_beyond_this_machine_it_warns_that_there_is_no_login(tmp_path):
    storage = make_study(tmp_path / "s.db")
    words = ("--storage", storage, "--port", 0, "--host", "0.0.0.0")
    with RunningCommand("dashboard", *words, cwd=tmp_path) as dashboard:
        assert dashboard.process.stdout is not None
        assert dashboard.process.stdout.readline().startswith("http://")
        dashboard.signal(signal.SIGTERM)
        assert dashboard.end() == 0
    assert "no login" in dashboard.err
