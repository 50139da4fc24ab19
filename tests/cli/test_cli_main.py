"""The command itself: what it imports, its help, its version, and that it knows every verb."""

import json
from pathlib import Path

import pytest
from sweeps import python

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.spec.space import Categorical, FloatRange, IntRange

HEAVY = ["tensorflow", "keras", "optuna", "sqlalchemy", "pandas", "numpy", "pydantic_settings"]


def modules_after(statement):
    """Run ``statement`` in a fresh Python and return which heavy modules it has imported."""
    program = (
        "import json, sys\n"
        "from sweeper.cli.main import main\n"
        f"{statement}\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr)\n"
    )
    return json.loads(python("-c", program, cwd=Path()).err.splitlines()[-1])


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"], ["nope"]])
def test_help_imports_nothing_heavy(words):
    assert modules_after(f"main({words!r})") == []


def test_the_import_check_sees_an_import():
    assert modules_after("main(['--help']); import numpy") == ["numpy"]


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_names_every_verb(call, word):
    answer = call(word)
    assert answer.code == 0
    verbs = {"run", "resume", "ls", "status", "show", "best", "logs", "dashboard"}
    shown = {line.split()[1] for line in answer.out.splitlines() if line.startswith("│ ")}
    assert verbs <= shown
    assert not {"verbs", "options", "output", "reading"} & shown


@pytest.mark.parametrize("verb", ["ls", "status", "show", "best", "logs", "run", "resume"])
def test_every_reading_verb_takes_json(call, verb):
    assert "--json" in call(verb, "--help").out


def test_the_version_is_on_stdout(call):
    answer = call("--version")
    assert answer.code == 0
    assert answer.out.startswith("sweeper ")


def test_python_dash_m_is_the_command():
    assert python("-m", "sweeper", "--version", cwd=Path()).out.startswith("sweeper ")


PROGRAM = """
import sys
from pathlib import Path
from sweeper.cli.main import main
code = main(sys.argv[2:])
print(code, *sorted({"alembic", "optuna", "numpy", "scipy", "tensorflow", *sys.argv[1:2]} & {*sys.modules}))
"""


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


@pytest.mark.parametrize(
    ("words", "control"),
    [
        ("status digits", "optuna"),
        *(
            pytest.param(words, "optuna", marks=pytest.mark.whole)
            for words in ("ls", "show digits 0", "status digits --json")
        ),
        ("ls", "sqlalchemy"),
    ],
)
def test_a_verb_that_reads_imports_nothing_that_trains(storage, words, control, tmp_path):
    words = (*words.split(), "--storage", storage)
    ran = python("-c", PROGRAM, control, *words, cwd=tmp_path)
    expected = "0" if control == "optuna" else "0 sqlalchemy"
    assert ran.out.splitlines()[-1] == expected, ran.err
