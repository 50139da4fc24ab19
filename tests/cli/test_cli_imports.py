"""What the reading verbs import: they are typed often, and need neither Optuna nor NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.db.database import Database
from sweeper.db.repository import Claim, Repository, StudyRow, WorkerIdentity
from sweeper.spec.space import Categorical, FloatRange, IntRange

PROGRAM = """
import sys
from sweeper.cli.main import main
code = main(sys.argv[2:])
print(code, *sorted({"optuna", "numpy", "scipy", "tensorflow", *sys.argv[1:2]} & {*sys.modules}))
"""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
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


@pytest.mark.parametrize("words", ["ls", "status digits", "show digits 0", "status digits --json"])
@pytest.mark.parametrize("control", ["optuna", "sqlalchemy"])
def test_a_verb_that_reads_imports_nothing_that_trains(
    storage: str, words: str, control: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, control, *words.split(), "--storage", storage],
        text=True,
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    expected = "0" if control == "optuna" else "0 sqlalchemy"
    assert ran.stdout.splitlines()[-1] == expected, ran.stderr
