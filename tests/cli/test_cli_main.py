"""The command itself: what it imports, its help, its version, and that it knows every verb."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli_fakes import Call

from sweeper.cli import main as command

HEAVY = ["tensorflow", "keras", "optuna", "sqlalchemy", "pandas", "numpy", "pydantic_settings"]


def modules_after(statement: str) -> list[str]:
    """Run ``statement`` in a fresh Python and return which heavy modules it has imported."""
    program = (
        "import json, sys\n"
        "from sweeper.cli.main import main\n"
        f"{statement}\n"
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return found


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"], ["nope"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert modules_after(f"main({words!r})") == []


def test_the_import_check_sees_an_import() -> None:
    assert modules_after("main(['--help']); import numpy") == ["numpy"]


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_names_every_verb(call: Call, word: str) -> None:
    answer = call(word)
    assert answer.code == 0
    verbs = {"run", "resume", "ls", "status", "show", "best", "logs", "dashboard"}
    shown = {line.split()[1] for line in answer.out.splitlines() if line.startswith("│ ")}
    assert verbs <= shown
    assert not {"verbs", "options", "output", "reading"} & shown


@pytest.mark.parametrize("verb", ["ls", "status", "show", "best", "logs", "run", "resume"])
def test_every_reading_verb_takes_json(call: Call, verb: str) -> None:
    assert "--json" in call(verb, "--help").out


def test_the_version_is_on_stdout(call: Call) -> None:
    answer = call("--version")
    assert answer.code == 0
    assert answer.out.startswith("sweeper ")


def test_every_module_with_verbs_is_registered() -> None:
    found = {verb.__module__ for verbs in command.VERBS.values() for verb in verbs}
    found |= {verb.__module__ for verb in command.DATABASE_VERBS}
    assert found == {
        f"sweeper.cli.{kind}" for kind in ("checking", "keeping", "reading", "running")
    }


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.stdout.startswith("sweeper ")
