"""The command itself: what it imports, its help, its version, and that it knows every verb."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import python

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.declarations.space import Categorical, FloatRange, IntRange

HEAVY = "tensorflow keras optuna sqlalchemy pandas numpy pydantic_settings"


PROGRAM = """
import sys
from sweeper.cli.main import main
code = main(sys.argv[2:])
print(code, *sorted({*sys.argv[1].split()} & {*sys.modules}), file=sys.stderr)
"""


def imported(heavy, *words, cwd):
    """Type ``words`` in a fresh Python; the exit code, and which of ``heavy`` it has imported."""
    ended = python("-c", PROGRAM, heavy, *words, cwd=cwd)
    code, *modules = ended.err.splitlines()[-1].split()
    return int(code), modules


@pytest.mark.parametrize(
    ("words", "code"), [("--help", 0), ("run --help", 0), ("--version", 0), ("nope", 2)]
)
def test_help_imports_nothing_heavy(words, code, tmp_path):
    assert imported(HEAVY, *words.split(), cwd=tmp_path) == (code, [])


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_names_every_verb(call, word):
    answer = call(word)
    assert answer.code == 0
    verbs = {"run", "resume", "ls", "status", "show", "best", "logs", "dashboard"}
    names = {line.split()[1] for line in answer.out.splitlines() if line.startswith("│ ")}
    assert verbs <= names
    assert not {"verbs", "options", "output", "reading"} & names


def test_the_version_is_on_stdout(call):
    answer = call("--version")
    assert answer.code == 0
    assert answer.out.startswith("sweeper ")


def test_python_dash_m_is_the_command():
    assert python("-m", "sweeper", "--version", cwd=Path()).out.startswith("sweeper ")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('read')}/sweeper.db"
    with Database.open(url, create=True) as database:
        repository = Repository(database)
        row = StudyRow("digits", {"epochs": 3}, "val_accuracy", "maximize", 2, None, 7)
        repository.create_or_open(row)
        claim = repository.claim("digits", WorkerIdentity.here(), lambda n: n)
        assert isinstance(claim, Claim)
        for name, distribution, value in (
            ("rate", FloatRange(1e-4, 0.1, log=True), 0.01),
            ("units", IntRange(8, 64), 16),
            ("kind", Categorical(("a", None)), "a"),
        ):
            repository.record_parameter(claim.token, name, distribution, value)
    return url


TRAINING = "alembic optuna numpy scipy tensorflow"


@pytest.mark.parametrize(
    "words",
    [
        "status digits",
        *(
            pytest.param(words, marks=pytest.mark.whole)
            for words in ("ls", "show digits 0", "status digits --json")
        ),
    ],
)
def test_a_verb_that_reads_imports_nothing_that_trains(storage, words, tmp_path):
    words = (*words.split(), "--storage", storage)
    assert imported(TRAINING, *words, cwd=tmp_path) == (0, [])


def test_control_the_import_checks_see_an_import(storage, tmp_path):
    words = ("ls", "--storage", storage)
    assert imported(f"{TRAINING} sqlalchemy", *words, cwd=tmp_path) == (0, ["sqlalchemy"])


def run_command(storage, *words, **options):
    words = ("-m", "sweeper", *words, "--storage", storage)
    return subprocess.run(
        [sys.executable, *words], stderr=subprocess.PIPE, text=True, check=False, **options
    )


def test_an_output_that_is_full_is_no_bug(storage):
    with Path("/dev/full").open("w") as full:
        ended = run_command(storage, "status", "digits", stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_sign_that_the_terminal_does_not_know_is_escaped(storage):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert (
        run_command(storage, "note", "digits", "0", "größer ✓", stdout=subprocess.PIPE).stderr == ""
    )
    shown = run_command(storage, "show", "digits", "0", stdout=subprocess.PIPE, env=env)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "gr\\xf6\\xdfer \\u2713" in shown.stdout
