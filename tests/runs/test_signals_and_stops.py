"""Signals to a run, a training and a trial; and requests to stop that come while a run begins."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from databases import opened_database
from scripted_trials import definition, row_of
from sweeps import python
from test_environment_faults import last_words, loading
from waiting import until

from sweeper.api.fit import _stop_signals
from sweeper.db.repository import Repository
from sweeper.errors import Interrupted
from sweeper.run import prepared_study, signals
from sweeper.run.options import RunRequest, WorkerOptions
from sweeper.run.protocol.messages import Failed
from sweeper.run.signals import early_termination, stop_signals


@contextmanager
def handled(number, how):
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_closed_terminal_stops_every_trial_at_a_checkpoint_however_often_it_says_so():
    asked = []
    with (
        handled(signal.SIGHUP, lambda *_: pytest.fail("not handled")),
        stop_signals(asked.append, lambda _: None),
    ):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert until(lambda: asked == ["drain"], 5), asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert until(lambda: asked == ["drain", "kill"], 5), asked


def test_under_nohup_a_closed_terminal_changes_nothing():
    asked = []
    with handled(signal.SIGHUP, signal.SIG_IGN), stop_signals(asked.append, lambda _: None):
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)
        assert asked == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_no_trial_runs_ends_the_run_as_interrupted(number):
    with (
        handled(signal.SIGHUP, lambda *_: pytest.fail("not handled")),
        pytest.raises(Interrupted, match=number.name),
        early_termination(),
    ):
        os.kill(os.getpid(), number)


def test_a_second_interrupt_ends_a_training_at_once():
    with _stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt, match="without a checkpoint"):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_sigterm_that_is_sent_to_the_process_and_to_its_group_is_one_request(monkeypatch):
    """As ``timeout 60 sweeper run …`` sends it."""
    now, asked = [10.0], []
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signals, "_apart", lambda act: act())
    with stop_signals(asked.append, lambda _: None):
        for now[0], expected in ((10.0, ["drain"]), (10.01, ["drain"]), (12.0, ["drain", "kill"])):
            os.kill(os.getpid(), signal.SIGTERM)
            assert asked == expected
    with _stop_signals() as stop:
        for now[0] in (20.0, 20.01):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_set()
        now[0] = 22.0
        with pytest.raises(KeyboardInterrupt, match="without a checkpoint"):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.whole
def test_a_trials_process_stops_on_sighup_as_on_sigterm(tmp_path):
    code = loading("""
        os.kill(os.getpid(), signal.SIGHUP)
        raise ValueError("it lives on")
    """)
    said, exit_code = last_words(code, tmp_path)
    assert isinstance(said, Failed), f"it ended with {exit_code}"
    assert said.error == "ValueError: it lives on"


LATE = """
import os, signal, sys
from sweeper.cli import main as cli

def verb(**_):
    if sys.argv[1] == "in":
        os.kill(os.getpid(), signal.SIGTERM)
    return 0

cli.typer.main.get_command = lambda app: verb
code = cli.main()
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


@pytest.mark.parametrize(("when", "code"), [("in", 130), ("after", 0)])
def test_a_late_sigterm_ends_the_command_with_a_code_of_its_own(tmp_path, when, code):
    ended = python("-c", LATE, when, cwd=tmp_path)
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err


# ---------------------------------------------------------------- requests while a run begins


@pytest.fixture
def repository(tmp_path):
    with opened_database(tmp_path / "runs.db") as database:
        yield Repository(database)


def test_only_what_was_asked_before_a_run_began_is_over_with_it(repository):
    for name in ("this", "other"):
        repository.create_or_open(row_of(definition().settings(), name=name))
        repository.request_stop(name, "drain")
    began = repository.now()
    repository.clear_stop("this", began)
    assert repository.stop_requested("this") is None
    time.sleep(0.002)  # the clock of SQLite counts milliseconds
    repository.request_stop("this", "drain")
    repository.clear_stop("this", began)
    assert repository.stop_requested("this") == "drain", "it was asked while the study was imported"
    assert repository.stop_requested("other") == "drain", "it is not started"


STUDY = """
import sweeper
from pathlib import Path
from sweeper.db.database import Database
from sweeper.db.repository import Repository

if Path({marker!r}).exists():
    with Database.open({url!r}, create=False) as database:
        Repository(database).request_stop("this", "drain")

def never(trial):
    raise AssertionError

study = sweeper.Study(name="this", model=never, data=never, epochs=1, trials=1, objective="loss",
                      sampler="random", threads=1)
"""


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_study_that_is_stopped_while_it_is_imported_stays_stopped(
    repository, tmp_path, *, asks, by_name
):
    url = repository.database.url_from_anywhere
    file = tmp_path / f"study_{asks}_{by_name}.py"
    marker = tmp_path / "asks"
    file.write_text(STUDY.format(marker=str(marker), url=url))

    def prepare():
        sys.modules.pop(file.stem, None)
        options = WorkerOptions(1, url, tmp_path, isolation="inline")
        if by_name and repository.study_names():
            request = RunRequest(options, lambda _: None, study="this")
        else:
            request = RunRequest(options, lambda _: None, source=str(file))
        with prepared_study.prepare(request):
            pass

    prepare()
    repository.request_stop("this", "drain")
    if asks:
        marker.touch()
    prepare()
    assert repository.stop_requested("this") == ("drain" if asks else None)
