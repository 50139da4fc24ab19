"""Scratch directories end with their process, however it ends, and nothing else is removed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sweeper.support.paths
from sweeper.support.paths import scratch_directory

ROOT = str(Path(__file__).parents[2])
HOLD = """
import os, sys, time
from sweeper.support.paths import scratch_directory

with scratch_directory("check") as directory:
    (directory / "big").write_text("x" * 1000)
    child = os.fork()
    print(directory, child or os.getpid(), flush=True) if child else None
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sweeper.support.paths, "_SETTLING", -1.0)
    return tmp_path


def directories(directory):
    return {entry for entry in directory.iterdir() if entry.is_dir()}


def test_a_killed_processs_directory_is_removed_by_the_next_but_not_before_its_children_end(
    own_directory,
):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=os.environ | {"TMPDIR": str(own_directory), "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        directory, child = process.stdout.readline().split()
        with scratch_directory("verify"):
            assert Path(directory, "big").exists(), "it is in use"
        process.kill()
        process.wait()
        with scratch_directory("verify"):
            assert Path(directory, "big").exists(), "a child of the dead process still uses it"
        os.kill(int(child), signal.SIGKILL)
        process.stdout.read()
    with scratch_directory("verify") as ours:
        assert directories(own_directory) == {ours}
    assert directories(own_directory) == set()


def test_links_files_and_new_directories_stay(own_directory, monkeypatch):
    outside = own_directory / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (own_directory / "sweeper-scratch-link").symlink_to(outside)
    (own_directory / "sweeper-scratch-file").write_text("x")
    old = own_directory / "sweeper-scratch-old"
    old.mkdir()
    (old / "inside").symlink_to(outside)
    with scratch_directory("check"):
        assert not old.exists()
        assert (outside / "kept").exists()
        assert (own_directory / "sweeper-scratch-link").is_symlink()
        assert (own_directory / "sweeper-scratch-file").exists()
    monkeypatch.setattr(sweeper.support.paths, "_SETTLING", 60.0)
    old.mkdir()
    with scratch_directory("check"):
        assert old.exists(), "its owner may just be about to lock it"
