"""Fixtures of the command line's tests: an empty place, a fake sweep, a fake database."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from cli_fakes import Answer, FakeReader, FakeSweep
from drawn_studies import made, trial_record

from sweeper.cli.main import main


@pytest.fixture
def results():
    """Return two complete trials, the second the better."""
    return made("digits", trial_record(0), trial_record(1))


@pytest.fixture(autouse=True)
def bare_directory(tmp_path, monkeypatch):
    """Give each test an empty current directory and an environment without our variables."""
    names = [name for name in os.environ if name.startswith("SWEEPER_")]
    for name in [name for name in names if not name.startswith("SWEEPER_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(results, monkeypatch):
    """Put a fake sweep where the command line imports the real one, and an empty study file ``s.py``."""
    Path("s.py").touch()
    fake = FakeSweep(results)
    module = ModuleType("sweeper.run.run")
    module.run_sweep = fake
    monkeypatch.setitem(sys.modules, "sweeper.run.run", module)
    return fake


@pytest.fixture
def reader(results, monkeypatch):
    """Put a fake database where the reading verbs open one."""
    fake = FakeReader(results)

    @contextmanager
    def open_fake(settings, patience):
        del settings, patience
        yield fake

    monkeypatch.setattr("sweeper.cli.reading.open_repository", open_fake)
    return fake


@pytest.fixture
def call(capsys):
    """Return a function that runs one command line in this process."""

    def run_words(*words):
        code = main(words)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run_words
