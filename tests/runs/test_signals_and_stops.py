"""Signals and errors while a run begins and while a trial runs, inline and in `fit`."""

import contextlib
import os
import signal
import sqlite3
import sys
import time
from dataclasses import replace

import keras
import numpy as np
import pytest
from databases import place_database
from study_files import SHORT
from sweeps import database_url, notices_of, python, sweep, sweep_inline

import sweeper
from sweeper.db.database import Database
from sweeper.db.repository import Repository
from sweeper.errors import DatabaseUnavailableError, Interrupted
from sweeper.records.events import AttemptStarted


def build_model(trial=None):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def load_data(trial=None):
    x = np.ones((20, 1), "float32")
    return sweeper.Data(train=(x, x), batch_size=2)


class SignalsItself(keras.callbacks.Callback):
    """Sends signals to its process at a step; None is a pause."""

    def __init__(self, *signals, at=3):
        super().__init__()
        self.signals = signals
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.at:
            for number in self.signals:
                time.sleep(1.1 if number is None else 0)
                if number is not None:
                    os.kill(os.getpid(), number)
            time.sleep(0.1)  # a run takes them in other threads


def run(directory, *signals, at=3, model=build_model, listener=None, **changes):
    """Run a study inline whose trial gets signals at a step; return its trial."""
    study = sweeper.Study(
        name="inline",
        model=model,
        data=load_data,
        callbacks=lambda trial: [SignalsItself(*signals, at=at)],
        objective="loss",
        trials=1,
        threads=1,
        **{"epochs": 2, "keep": sweeper.Keep(last=9), **changes},
    )
    place_database(directory / "sweeper.db")
    with contextlib.suppress(Interrupted):
        study.run(isolation="inline", workers=1, runs_dir=directory, listener=listener or id)
    return stored(directory)


def stored(directory):
    with Database.open(database_url(directory), create=False) as database:
        return Repository(database).trial("inline", 0)


@contextlib.contextmanager
def hangup_is(handler):
    original = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, original)


INT = signal.SIGINT
TERM = signal.SIGTERM
HUP = signal.SIGHUP


@pytest.mark.parametrize(
    ("signals", "killed"),
    [
        ((INT, INT), True),
        ((HUP, HUP, HUP), False),  # a closed terminal and its shell both send it
        ((HUP, TERM), True),
        ((TERM, TERM), False),  # `timeout 60 sweeper run …` sends it to the process and its group
        pytest.param((TERM, None, TERM), True, marks=pytest.mark.whole),
    ],
)
def test_a_second_request_kills_and_the_same_one_sent_twice_does_not(tmp_path, signals, killed):
    with hangup_is(lambda *_: pytest.fail("not handled")):
        trial = run(tmp_path / "runs", *signals)
        [attempt] = trial.attempts
        assert (trial.state, attempt.outcome) == ("interrupted", "interrupted")
        assert attempt.error == ("killed on request" if killed else None)
        assert [checkpoint.step for checkpoint in trial.checkpoints] == ([] if killed else [3])

        expected = KeyboardInterrupt if killed else Interrupted
        message = "without a checkpoint" if killed else "stopped at step 3, with a checkpoint"
        with pytest.raises(expected, match=message):
            sweeper.fit(
                *(build_model(), load_data()),
                epochs=1,
                checkpoints=tmp_path / "fit",
                callbacks=[SignalsItself(*signals)],
            )


def test_under_nohup_a_closed_terminal_changes_nothing(tmp_path):
    with hangup_is(signal.SIG_IGN):
        assert run(tmp_path, HUP).state == "complete"


def test_what_its_checkpoint_knows_is_told_again_by_a_trial_that_goes_on(tmp_path):
    """The rows may have died with a worker."""
    first = run(tmp_path, TERM, at=13)
    assert [record.epoch for record in first.epochs] == [0]
    with contextlib.closing(sqlite3.connect(tmp_path / "sweeper.db")) as database, database:
        for table in ("epochs", "checkpoints"):
            database.execute(f"DELETE FROM sweeper_{table}")
    assert stored(tmp_path).epochs == ()
    second = run(tmp_path, TERM, at=13)
    assert second.attempts[1].start_step == 13
    assert [record.epoch for record in second.epochs] == [0, 1]
    assert first.checkpoints[-1] in second.checkpoints


# What is raised beside an inline trial


@pytest.mark.parametrize("late", [0, 4], ids=["at once", "after four answers that are late"])
def test_a_second_interrupt_leaves_a_trial_to_be_resumed(tmp_path, monkeypatch, late):
    finish = Repository.finish
    calls = []

    def answer_late(repository, *arguments, **named):
        calls.append(arguments)
        if len(calls) <= late:
            error = DatabaseUnavailableError("no answer within 1 s")
            error.passing = True
            raise error
        return finish(repository, *arguments, **named)

    monkeypatch.setattr(Repository, "finish", answer_late)
    [attempt] = run(tmp_path, INT, INT).attempts
    assert (attempt.outcome, attempt.error) == ("interrupted", "killed on request")
    assert len(calls) == late + 1


def test_an_error_of_the_database_is_none_of_the_trials_whatever_its_code_catches(
    tmp_path, monkeypatch
):
    def gone(*_arguments):
        raise DatabaseUnavailableError("gone for good")

    def careless(trial):
        with contextlib.suppress(Exception):
            trial.suggest_float("rate", 0, 1)
        return build_model()

    monkeypatch.setattr(Repository, "record_parameter", gone)
    with pytest.raises(DatabaseUnavailableError, match="gone for good"):
        run(tmp_path, model=careless)
    assert [attempt.outcome for attempt in stored(tmp_path).attempts] == ["interrupted"]


def test_a_listener_that_raises_leaves_a_trial_to_be_resumed(tmp_path):
    def hear(event):
        if isinstance(event, AttemptStarted):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run(tmp_path, listener=hear)
    assert stored(tmp_path).state == "interrupted"


def test_the_studys_time_limit_stops_it_as_a_signal_does(tmp_path):
    events = []
    trial = run(tmp_path, listener=events.append, epochs=10_000, study_time_limit=0.5)
    assert (trial.state, trial.attempts[0].error) == ("interrupted", None)
    assert any("time limit of 0.5 s is over" in text for text in notices_of(events))


# While a run begins


@pytest.mark.parametrize("number", [TERM, HUP])
def test_a_signal_while_no_trial_runs_ends_the_run_as_interrupted(number, tmp_path):
    text = replace(SHORT, head=f"os.kill(os.getpid(), {int(number)})")
    with (
        hangup_is(lambda *_: pytest.fail("not handled")),
        pytest.raises(Interrupted, match=number.name),
    ):
        sweep_inline(text, tmp_path)


ASKS = """
if Path("asks").exists():
    from sweeper.db.database import Database
    from sweeper.db.repository import Repository

    with Database.open("sqlite:///runs/sweeper.db", create=False) as database:
        Repository(database).request_stop("small", "drain")
"""


@pytest.mark.parametrize("by_name", [True, False])
def test_a_study_that_is_stopped_while_it_is_imported_stays_stopped(
    tmp_path, monkeypatch, *, by_name
):
    monkeypatch.chdir(tmp_path)
    text = replace(SHORT, head=ASKS, arguments=SHORT.arguments.replace("epochs=2", "epochs=1"))

    def run(trials):
        sys.modules.pop(f"asks_{by_name}", None)
        file = text.write(tmp_path / f"asks_{by_name}.py")
        file = None if by_name and trials > 1 else file
        options = {"trials": trials, "workers": 1, "isolation": "inline"}
        return sweep(file, tmp_path / "runs", study=None if file else "small", **options)

    run(1)
    with Database.open(database_url(tmp_path / "runs"), create=False) as database:
        repository = Repository(database)
        repository.request_stop("small", "drain")
        assert len(run(2).trials) == 2, "what was asked before the run began is over with it"
        (tmp_path / "asks").touch()
        with pytest.raises(Interrupted):
            run(3)
        assert repository.stop_requested("small") == "drain"
        assert len(repository.trials("small")) == 2


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
