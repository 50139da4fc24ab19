"""What ``doctor`` looks at: each fault that it is for is made here once, and it names it."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sweeper.checkpoint.operations import FileOperations
from sweeper.checks import doctor
from sweeper.checks.doctor import (
    database_findings,
    directory_findings,
    installed_version,
    machine_findings,
    package_findings,
)
from sweeper.cli.main import main
from sweeper.db.database import Database
from sweeper.db.repository import Repository, StudyRow, WorkerIdentity
from sweeper.records.diagnoses import Diagnosis, Finding
from sweeper.spec.settings import Settings, load_settings
from sweeper.support.installation import install_command

WELL = {"devices": ["CPU"], "repeats": True}


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def repository(here: Path) -> Iterator[Repository]:
    with Database.open("sqlite:///runs/sweeper.db", create=True) as database:
        repository = Repository(database)
        repository.create_or_open(StudyRow("digits", {}, "loss", "minimize", 4, None, 0))
        yield repository


def database(settings: Settings | None = None) -> dict[str, Finding]:
    return by_name(database_findings(settings or load_settings()))


def test_every_finding_says_what_was_seen_and_expected_and_what_to_do_if_it_is_not_in_order() -> (
    None
):
    found = [
        *package_findings(),
        *machine_findings(2, lambda: WELL),
        *directory_findings(Path("runs"), sqlite=True),
        *database_findings(load_settings()),
    ]
    assert len({(f.area, f.name) for f in found}) == len(found)
    for finding in found:
        assert finding.seen, finding
        assert finding.expected, finding
        assert finding.level == "ok" or finding.advice, finding


def test_a_package_that_is_missing_or_too_old_is_broken_and_an_extra_is_not() -> None:
    def installed(package: str) -> str | None:
        return {"keras": "3.1.0", "tensorflow": None, "ray": None}.get(
            package, installed_version(package)
        )

    found = by_name(package_findings(installed))
    assert (found["keras"].level, found["keras"].seen) == ("broken", "3.1.0")
    assert (found["tensorflow"].level, found["tensorflow"].seen) == ("broken", "not installed")
    assert "pip install" in found["tensorflow"].advice
    assert found["[ray]"].level == "ok"
    assert found["[ray]"].advice == install_command("ray")
    assert by_name(package_findings())["keras"].level == "ok"


@pytest.mark.parametrize(
    ("said", "name", "level"),
    [
        ({"error": "exited with 1: ImportError: libcuda"}, "TensorFlow", "broken"),
        ({**WELL, "repeats": False}, "deterministic kernels", "unpromised"),
        (WELL, "deterministic kernels", "ok"),
    ],
)
def test_what_tensorflow_cannot_do_is_named(said: dict[str, Any], name: str, level: str) -> None:
    assert by_name(machine_findings(1, lambda: said))[name].level == level


def test_tensorflow_itself_is_asked_and_answers() -> None:
    found = by_name(machine_findings(1))
    assert "CPU" in found["devices"].seen
    assert found["deterministic kernels"].level == "ok"


def test_a_python_without_tensorflow_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "import a_package_that_is_not_there")
    found = by_name(machine_findings(1))["TensorFlow"]
    assert found.level == "broken"
    assert "a_package_that_is_not_there" in found.seen


def test_more_workers_than_cores_and_memory_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_name(machine_findings(10_000, lambda: WELL))
    assert (found["cores"].level, found["memory"].level) == ("note", "note")
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _which: (256, 1024))
    few = by_name(machine_findings(1, lambda: WELL))
    assert few["open files"].advice == "ulimit -n 1024"
    assert few["address space"].level == "note"


def test_nothing_is_left_in_the_runs_directory_and_none_is_made(here: Path) -> None:
    assert {f.level for f in directory_findings(Path("runs"), sqlite=True)} == {"ok"}
    assert list(here.iterdir()) == []


class RenamesNothing(FileOperations):
    def rename(self, source: Path, target: Path) -> None:
        """Copy, as some object stores' file systems do, and leave the source."""
        target.mkdir()
        (target / "file").write_bytes((source / "file").read_bytes())


class FullDisk(FileOperations):
    def fsync(self, descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("operations", "seen"),
    [(RenamesNothing(), "a renamed directory has"), (FullDisk(), "No space left on device")],
)
def test_a_file_system_that_cannot_commit_promises_no_checkpoint(
    here: Path, operations: FileOperations, seen: str
) -> None:
    found = by_name(directory_findings(here, sqlite=True, operations=operations))
    assert found["rename and fsync"].level == "unpromised"
    assert seen in found["rename and fsync"].seen


def test_locks_that_everybody_gets_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _mode: None)
    found = by_name(directory_findings(here, sqlite=True))["locks"]
    assert (found.level, found.seen) == ("unpromised", "two holders got the same lock")


def test_a_database_file_on_a_network_is_not_promised(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = SimpleNamespace(mountpoint="/", fstype="nfs4")
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [root])  # noqa: A006
    assert by_name(directory_findings(here, sqlite=True))["file system"].level == "unpromised"
    assert by_name(directory_findings(here, sqlite=False))["file system"].level == "ok"
    monkeypatch.setattr(doctor, "_LEAST_FREE", 2**70)
    assert by_name(directory_findings(here, sqlite=False))["disk space"].level == "note"


def test_a_runs_directory_that_is_a_file_is_broken(here: Path) -> None:
    (here / "runs").touch()
    [found] = directory_findings(here / "runs" / "below", sqlite=True)
    assert found.level == "broken"


def test_a_sound_database_has_nothing_to_say(repository: Repository) -> None:
    repository.claim("digits", WorkerIdentity.here(), lambda n: n)
    found = database()
    assert {finding.level for finding in found.values()} == {"ok"}
    assert found["leases"].seen == "1 running, each with its worker"
    assert "1 study, revision" in found["database"].seen


def test_a_trial_whose_worker_is_gone_is_named_with_the_command_that_goes_on(
    repository: Repository,
) -> None:
    gone = replace(WorkerIdentity.here(), pid=2**22 + 1)
    repository.claim("digits", gone, lambda n: n)
    found = database()["leases"]
    assert (found.level, found.seen) == ("note", "open attempts of workers that are gone: digits 0")
    assert found.advice.startswith("sweeper resume digits")


def test_a_database_that_is_not_there_yet_is_a_note_and_none_is_made(here: Path) -> None:
    found = database()["database"]
    assert (found.level, found.advice) == ("note", "sweeper init")
    assert list(here.iterdir()) == []


def test_a_file_that_is_no_database_is_broken(here: Path) -> None:
    (here / "notes.db").write_text("these are notes " * 1000)
    assert database(load_settings(storage="sqlite:///notes.db"))["database"].level == "broken"


def test_damage_inside_a_database_is_found(repository: Repository) -> None:
    repository.database.close()
    file = Path("runs/sweeper.db")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA writable_schema=ON")
        # The index is there, and holds nothing of what is in its table.
        connection.execute("CREATE TABLE kept (word TEXT)")
        connection.execute("INSERT INTO kept VALUES ('word')")
        connection.execute("CREATE INDEX of_kept ON kept (word)")
        connection.execute(
            "UPDATE sqlite_schema SET sql = 'CREATE TABLE kept (word TEXT NOT NULL CHECK (0))' "
            "WHERE name = 'kept'"
        )
    connection.close()
    found = database()
    assert found["SQLite"].level == "broken"
    assert "CHECK" in found["SQLite"].seen
    assert (found["journal"].level, found["journal"].seen) == ("note", "a rollback journal")


def test_another_versions_database_is_broken_and_says_what_to_do(repository: Repository) -> None:
    repository.database.write(
        lambda c: c.exec_driver_sql("update sweeper_alembic_version set version_num = '0001'")
    )
    found = database()["database"]
    assert (found.level, found.advice) == ("broken", "sweeper db upgrade")


@pytest.mark.parametrize(
    ("levels", "code"),
    [(["ok", "note"], 0), (["ok", "unpromised"], 4), (["unpromised", "broken", "note"], 1)],
)
def test_the_exit_code_is_the_worst_finding(levels: list[Any], code: int) -> None:
    found = Diagnosis([Finding("files", str(n), level, "a", "b") for n, level in enumerate(levels)])
    assert found.exit_code == code
    assert found.to_json()["promised"] == (code == 0)


def test_the_verb_prints_every_finding_and_exits_with_the_worst(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_ask", lambda: WELL)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("Python", "keras", "[grain]", "deterministic kernels", "locks", "database"):
        assert name in text
    assert "do: sweeper init" in text
    monkeypatch.setattr(doctor, "_ask", lambda: {**WELL, "repeats": False})
    assert main(["doctor", "--json"]) == 4
    assert '"promised": false' in capsys.readouterr().out
