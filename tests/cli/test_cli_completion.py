"""Completion in a shell: stored names, quickly, and nothing at all where something is wrong."""

import pytest
from sweeps import python

from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity

URL = "sqlite:///runs/sweeper.db"


@pytest.fixture
def stored(bare_directory):
    """Two studies, of which the first has eleven trials."""
    with Database.open(URL, create=True) as database:
        repository = Repository(database)
        for name in ("digits-rate", "letters"):
            repository.create_or_open(StudyRow(name, {}, "loss", "minimize", 20, None, 0))
        for _ in range(11):
            repository.claim("digits-rate", WorkerIdentity.here(), lambda n: n)
    return bare_directory


@pytest.fixture
def complete(call, monkeypatch):
    """Give what bash would be offered for the last word."""

    def words(*typed):
        monkeypatch.setenv("_SWEEPER_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["sweeper", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        answer = call()
        assert answer.err == ""
        return answer.out.split()

    return words


def test_a_stored_study_is_completed_from_the_database(stored, complete):
    assert complete("status", "di") == ["digits-rate"]
    assert complete("resume", "l") == ["letters"]
    assert complete("status", "none-such") == []


def test_a_trial_is_completed_from_its_study(stored, complete):
    assert complete("show", "digits-rate", "1") == ["1", "10"]
    assert complete("compare", "digits-rate", "0", "1") == ["1", "10"]
    assert complete("show", "letters", "1") == []
    assert complete("show", "no-such", "1") == []


def test_the_database_that_the_words_before_name_is_asked(stored, complete):
    (stored / "runs").rename(stored / "elsewhere")
    assert complete("status", "di") == []
    assert complete("status", "--runs-dir", "elsewhere", "di") == ["digits-rate"]


@pytest.mark.parametrize("obstacle", ["nothing", "no database", "another version", "bad settings"])
def test_what_cannot_be_read_completes_to_nothing_and_says_nothing(
    bare_directory, complete, obstacle
):
    file = bare_directory / "runs" / "sweeper.db"
    if obstacle == "no database":
        file.parent.mkdir()
        file.write_text("notes " * 1000)
    elif obstacle == "another version":
        with Database.open(URL, create=True) as database:
            database.write(
                lambda c: c.exec_driver_sql("update sweeper_alembic_version set version_num='9'")
            )
    elif obstacle == "bad settings":
        (bare_directory / "sweeper.toml").write_text("workers = [")
    files = sorted(bare_directory.rglob("*"))
    assert complete("status", "di") == []
    assert sorted(bare_directory.rglob("*")) == files


def test_completion_imports_neither_tensorflow_nor_optuna(stored):
    program = (
        "import sys\nfrom sweeper.cli.main import main\nmain()\n"
        "print([m for m in ('tensorflow', 'keras', 'optuna') if m in sys.modules])"
    )
    typed = {"COMP_WORDS": "sweeper status di", "COMP_CWORD": "2"}
    env = {"_SWEEPER_COMPLETE": "complete_bash", **typed}
    answer = python("-c", program, cwd=stored, env=env)
    assert answer.out.split("\n")[:2] == ["digits-rate", "[]"], answer.err
