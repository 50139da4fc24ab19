"""What ``doctor`` looks at: each fault that it is for is made here once, and it names it."""

import contextlib
import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from sweeper.cli.main import main

WELL = {"devices": ["CPU"], "repeats": True}


@pytest.fixture
def diagnosed(tmp_path, monkeypatch, capsys):
    """Runs ``doctor`` where TensorFlow answers as is given; returns its exit code and findings by name."""
    monkeypatch.chdir(tmp_path)

    def diagnose(*words, answer=WELL):
        if answer is not None:
            monkeypatch.setattr("sweeper.checks.doctor._ask", lambda: answer)
        code = main(["doctor", "--json", *words])
        report = json.loads(capsys.readouterr().out)
        assert report["promised"] == (code == 0)
        for finding in report["findings"]:
            assert finding["seen"], finding
            assert finding["expected"], finding
            assert finding["level"] == "ok" or finding["advice"], finding
        return code, {finding["name"]: finding for finding in report["findings"]}

    return diagnose


def test_the_verb_prints_every_finding(diagnosed, capsys):
    code, findings = diagnosed()
    assert code == 0
    assert {finding["level"] for finding in findings.values()} == {"ok"}
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("Python", "keras", "deterministic kernels", "database", "a local disk"):
        assert name in text


def test_a_package_that_is_missing_or_too_old_is_broken_and_an_extras_is_a_note(
    diagnosed, monkeypatch
):
    def installed(package):
        others = {"keras": "3.1.0", "tensorflow": "", "ray": "", "grain": "0.0.1"}
        with contextlib.suppress(metadata.PackageNotFoundError):
            return others[package] if package in others else metadata.version(package)
        return ""

    monkeypatch.setattr("sweeper.checks.doctor.version_of", installed)
    code, findings = diagnosed()
    assert code == 1
    assert (findings["keras"]["level"], findings["keras"]["seen"]) == ("broken", "3.1.0")
    tensorflow = findings["tensorflow"]
    assert (tensorflow["level"], tensorflow["seen"]) == ("broken", "not installed")
    assert "pip install" in tensorflow["advice"]
    assert not any("ray" in name for name in findings)
    assert findings["[grain] grain"]["level"] == "note"
    assert "[grain]" in findings["[grain] grain"]["advice"]


@pytest.mark.parametrize(
    ("answer", "name", "level", "code"),
    [
        ({"error": "exited with 1: ImportError: libcuda"}, "TensorFlow", "broken", 1),
        ({**WELL, "repeats": False}, "deterministic kernels", "unpromised", 4),
    ],
)
def test_what_tensorflow_cannot_do_is_named(answer, name, level, code, diagnosed):
    ended, findings = diagnosed(answer=answer)
    assert (ended, findings[name]["level"]) == (code, level)


@pytest.mark.whole
def test_tensorflow_itself_is_asked_and_answers(diagnosed):
    _, findings = diagnosed(answer=None)
    assert "CPU" in findings["devices"]["seen"]
    assert findings["deterministic kernels"]["level"] == "ok"


def test_a_python_without_tensorflow_is_broken(diagnosed, monkeypatch):
    monkeypatch.setattr("sweeper.checks.doctor._PROBE", "import a_package_that_is_not_there")
    code, findings = diagnosed(answer=None)
    assert (code, findings["TensorFlow"]["level"]) == (1, "broken")
    assert "a_package_that_is_not_there" in findings["TensorFlow"]["seen"]


@pytest.mark.parametrize(
    ("mounted", "storage", "level"),
    [
        ("nfs4", "sqlite:///{mount}/sweeper.db", "unpromised"),
        ("nfs4", "sqlite:///{link}/sweeper.db", "unpromised"),
        ("ext4", "sqlite:///{mount}/sweeper.db", "ok"),
        ("nfs4", "postgresql://user@server/studies", "ok"),
    ],
)
def test_a_database_file_on_a_network_is_not_promised(
    mounted, storage, level, diagnosed, monkeypatch
):
    mount = Path("far").absolute()
    link = Path("link").absolute()
    mount.mkdir()
    link.symlink_to(mount)
    disks = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    disks.append(SimpleNamespace(mountpoint=str(mount), fstype=mounted))
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: disks)  # noqa: A006
    code, findings = diagnosed("--storage", storage.format(mount=mount, link=link))
    assert (code, findings["disk"]["level"]) == (4 if level == "unpromised" else 0, level)
    assert (mounted in findings["disk"]["seen"]) == storage.startswith("sqlite")
    assert list(mount.iterdir()) == []


@pytest.mark.parametrize(
    ("differences", "level"),
    [(None, "note"), ((), "ok"), (("history, epoch 2: differs",), "unpromised")],
)
def test_versions_that_nobody_tested_are_named_with_what_their_self_test_said(
    differences, level, diagnosed, monkeypatch
):
    result = SimpleNamespace(passed=not differences, differences=differences)
    monkeypatch.setattr("sweeper.support.versions.TESTED", frozenset())
    monkeypatch.setattr(
        "sweeper.checks.doctor.kept_result", lambda _: None if differences is None else result
    )
    _, findings = diagnosed()
    assert findings["exactness"]["level"] == level
    assert all(difference in findings["exactness"]["seen"] for difference in differences or ())
