"""Settings: the order of the four places, the database that follows the runs, and the messages."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sweeper.declarations.arguments import usable_cores
from sweeper.declarations.settings import load_settings
from sweeper.errors import UsageError


@pytest.fixture(autouse=True)
def bare_directory(tmp_path, monkeypatch):
    """Give each test an empty current directory and an environment without our variables."""
    for name in list(os.environ):
        if name.startswith("SWEEPER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_with_nothing_said_the_defaults_hold(monkeypatch):
    monkeypatch.setenv("SWEEPER_STORAGE", "")  # an empty variable says nothing
    monkeypatch.setenv("SWEEPER_DEBUG", "1")  # and one that is no setting is left alone
    settings = load_settings()
    assert settings.storage == "sqlite:///runs/sweeper.db"
    assert settings.runs_dir == Path("runs")
    assert settings.workers == usable_cores() >= 1
    assert (settings.engine, settings.isolation) == ("local", "auto")
    with pytest.raises(ValidationError, match="frozen"):
        settings.workers = 3


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(bare_directory, monkeypatch):
    assert load_settings().engine == "local"
    (bare_directory / "sweeper.toml").write_text('workers = 11\nengine = "ray"\n')
    assert (load_settings().workers, load_settings().engine) == (11, "ray")
    monkeypatch.setenv("SWEEPER_WORKERS", "12")
    assert (load_settings().workers, load_settings().engine) == (12, "ray")
    assert (load_settings(workers=13).workers, load_settings(workers=13).engine) == (13, "ray")


def test_the_database_follows_the_runs_when_only_they_are_moved(monkeypatch, tmp_path):
    assert load_settings(runs_dir=Path("elsewhere")).storage == "sqlite:///elsewhere/sweeper.db"
    monkeypatch.setenv("SWEEPER_RUNS_DIR", str(tmp_path / "r"))
    assert load_settings().storage == f"sqlite:///{tmp_path}/r/sweeper.db"
    assert load_settings(storage="sqlite:///x.db").storage == "sqlite:///x.db"
    assert load_settings(storage="sqlite:///x.db").runs_dir == tmp_path / "r"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("workers = 0\n", ["sweeper.toml: workers", "found 0", "a whole number, at least 1"]),
        ('workers = "many"\n', ["sweeper.toml: workers", "'many'", "a whole number"]),
        ('engine = "slurm"\n', ["sweeper.toml: engine", "'slurm'", "local, dask or ray"]),
        (
            "storrage = 1\n",
            ["sweeper.toml: storrage", "there is no setting of that name", "storage"],
        ),
        ('storage = "x.db"\n', ["sweeper.toml: storage", "'x.db'", "sqlite:///x.db"]),
        ('runs_dir = "a?b"\n', ["sweeper.toml: runs_dir", "'a?b'", "a directory's path"]),
        ("workers =\n", ["sweeper.toml", "not valid TOML", "line 1"]),
        ("\udcff\udcfe", ["sweeper.toml"]),  # bytes that are no text
    ],
)
def test_a_bad_file_is_a_usage_error_that_names_file_key_and_expectation(
    bare_directory, text, parts
):
    (bare_directory / "sweeper.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        load_settings()
    for part in parts:
        assert part in str(caught.value)


def test_a_bad_variable_and_a_bad_flag_are_named_as_what_they_are(monkeypatch):
    monkeypatch.setenv("SWEEPER_WORKERS", "two")
    with pytest.raises(UsageError, match=r"SWEEPER_WORKERS: found 'two'"):
        load_settings()
    with pytest.raises(UsageError, match=r"--storage: found 'x\.db'"):
        load_settings(workers=1, storage="x.db")


def test_a_printed_command_begins_with_a_path_where_the_shell_does_not_find_the_program(
    monkeypatch,
):
    monkeypatch.setenv("PATH", "/nowhere")
    here = Path(sys.executable).parent
    monkeypatch.chdir(here.parents[1])
    assert load_settings().command("ls") == f"{here.relative_to(Path.cwd())}/sweeper ls"
    monkeypatch.chdir("/")
    assert load_settings(runs_dir="r").command("ls").endswith("/sweeper ls --runs-dir r")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert load_settings().command("ls") == "sweeper ls", "it is run as a module"


def test_a_printed_command_says_only_what_differs_from_the_defaults():
    assert load_settings().command("resume", "s") == "sweeper resume s"
    settings = load_settings(storage="sqlite:///my db.sqlite", runs_dir=Path("/data/r"))
    assert (
        settings.command("resume", "s", workers=3, trials=5, engine="dask", isolation="spawn")
        == "sweeper resume s --storage 'sqlite:///my db.sqlite' --runs-dir /data/r "
        "--workers 3 --trials 5 --engine dask --isolation spawn"
    )
    moved = load_settings(storage="sqlite:///r/sweeper.db", runs_dir=Path("r"))
    assert moved.command("resume", "s") == "sweeper resume s --runs-dir r"
    same = {"engine": "local", "isolation": "auto", "trials_per_gpu": 1, "gpus": None}
    assert moved.command("resume", "s", **same) == "sweeper resume s --runs-dir r"


def test_no_password_is_printed():
    url = "postgresql+psycopg://me:secret@host:5432/db"
    command = load_settings(storage=url).command("ls")
    assert shlex.split(command)[2:] == ["--storage", "postgresql+psycopg://me:***@host:5432/db"]
    for url in ("postgresql://me:sec/ret@host/db", "postgresql://host/db?user=me&password=secret"):
        assert "ret" not in load_settings(storage=url).command("ls")
    plain = load_settings(storage="postgresql://me@host/db").command("ls")
    assert plain == "sweeper ls --storage postgresql://me@host/db"
