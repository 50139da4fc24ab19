"""What ``doctor`` looks at: each fault that it is for is made here once, and it names it."""

from types import SimpleNamespace

import psutil
import pytest

from sweeper.checks import doctor
from sweeper.checks.doctor import (
    disk_finding,
    installed_version,
    package_findings,
    tensorflow_findings,
)
from sweeper.cli.main import main
from sweeper.records.diagnoses import Diagnosis, Diagnostic
from sweeper.spec.settings import load_settings
from sweeper.support import versions
from sweeper.support.installation import install_command
from sweeper.support.versions import Environment, SelfTestResult, keep_result

WELL = {"devices": ["CPU"], "repeats": True}


def by_name(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_finding_says_what_was_seen_and_expected_and_what_to_do_if_it_is_not_in_order(
    monkeypatch,
):
    found = [*package_findings(), disk_finding(load_settings().storage)]
    for said in ({**WELL, "repeats": False}, {"error": "exited with 1"}):
        monkeypatch.setattr(doctor, "_ask", lambda said=said: said)
        found += tensorflow_findings()
    assert len({(f.area, f.name) for f in found}) == len(found)
    for finding in found:
        assert finding.seen, finding
        assert finding.expected, finding
        assert finding.level == "ok" or finding.advice, finding


def test_a_package_that_is_missing_or_too_old_is_broken_and_an_extras_is_a_note(monkeypatch):
    assert {finding.level for finding in package_findings()} == {"ok"}

    def installed(package):
        return {"keras": "3.1.0", "tensorflow": None, "ray": None, "grain": "0.0.1"}.get(
            package, installed_version(package)
        )

    monkeypatch.setattr(doctor, "installed_version", installed)
    found = by_name(package_findings())
    assert (found["keras"].level, found["keras"].seen) == ("broken", "3.1.0")
    assert (found["tensorflow"].level, found["tensorflow"].seen) == ("broken", "not installed")
    assert "pip install" in found["tensorflow"].advice
    assert not any("ray" in name for name in found)
    assert found["[grain] grain"].level == "note"
    assert found["[grain] grain"].advice == install_command("grain")


@pytest.mark.parametrize(
    ("said", "name", "level"),
    [
        ({"error": "exited with 1: ImportError: libcuda"}, "TensorFlow", "broken"),
        ({**WELL, "repeats": False}, "deterministic kernels", "unpromised"),
        (WELL, "deterministic kernels", "ok"),
    ],
)
def test_what_tensorflow_cannot_do_is_named(said, name, level, monkeypatch):
    monkeypatch.setattr(doctor, "_ask", lambda: said)
    assert by_name(tensorflow_findings())[name].level == level


@pytest.mark.whole
def test_tensorflow_itself_is_asked_and_answers():
    found = by_name(tensorflow_findings())
    assert "CPU" in found["devices"].seen
    assert found["deterministic kernels"].level == "ok"


def test_a_python_without_tensorflow_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import a_package_that_is_not_there")
    found = by_name(tensorflow_findings())["TensorFlow"]
    assert found.level == "broken"
    assert "a_package_that_is_not_there" in found.seen


@pytest.mark.parametrize(
    ("mounted", "storage", "level"),
    [
        ("nfs4", "sqlite:///runs/sweeper.db", "unpromised"),
        ("ext4", "sqlite:///runs/sweeper.db", "ok"),
        ("nfs4", "postgresql://user@server/studies", "ok"),
    ],
)
def test_a_database_file_on_a_network_is_not_promised(here, monkeypatch, mounted, storage, level):
    disks = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    disks.append(SimpleNamespace(mountpoint=str(here), fstype=mounted))
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: disks)  # noqa: A006
    found = disk_finding(storage)
    assert found.level == level
    assert (mounted in found.seen) == storage.startswith("sqlite")
    assert list(here.iterdir()) == []


def test_a_link_to_a_networks_disk_is_followed(here, monkeypatch):
    (here / "far").mkdir()
    (here / "runs").symlink_to(here / "far")
    disks = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(here / "far"), fstype="cifs"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: disks)  # noqa: A006
    assert disk_finding("sqlite:///runs/sweeper.db").level == "unpromised"


@pytest.mark.parametrize(
    ("levels", "code"),
    [(["ok", "note"], 0), (["ok", "unpromised"], 4), (["unpromised", "broken", "note"], 1)],
)
def test_the_exit_code_is_the_worst_finding(levels, code):
    found = Diagnosis(
        [Diagnostic("files", str(n), level, "a", "b") for n, level in enumerate(levels)]
    )
    assert found.exit_code == code
    assert found.to_json()["promised"] == (code == 0)


def test_the_verb_prints_every_finding_and_exits_with_the_worst(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_ask", lambda: WELL)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("Python", "keras", "deterministic kernels", "database", "a local disk"):
        assert name in text
    monkeypatch.setattr(doctor, "_ask", lambda: {**WELL, "repeats": False})
    assert main(["doctor", "--json"]) == 4
    assert '"promised": false' in capsys.readouterr().out


def test_versions_that_nobody_tested_are_named_with_what_their_self_test_said(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert by_name(package_findings())["exactness"].level == "ok"
    monkeypatch.setattr(versions, "TESTED", frozenset())
    assert by_name(package_findings())["exactness"].level == "note"
    environment = Environment.current()
    keep_result(SelfTestResult(environment, 9.0))
    assert by_name(package_findings())["exactness"].level == "ok"
    keep_result(SelfTestResult(environment, 9.0, ("history, epoch 2: differs",)))
    failed = by_name(package_findings())["exactness"]
    assert failed.level == "unpromised"
    assert "history, epoch 2" in failed.seen
