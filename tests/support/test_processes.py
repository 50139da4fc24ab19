"""A process is known by more than its id, and its scratch directories end with it."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.support import paths, processes
from sweeper.support.paths import scratch_directory
from sweeper.support.processes import ProcessIdentity, is_gone

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


def test_another_boot_of_a_machine_without_an_id_may_be_another_machine(monkeypatch):
    monkeypatch.setattr(processes, "_boot_id", lambda: "/boot/namespace")
    me = ProcessIdentity.here()
    assert is_gone(me) is False
    assert is_gone(replace(me, boot_id="/another-boot/namespace")) is None


def test_a_system_without_proc_is_asked_for_the_start_of_a_process():
    started = processes._started_elsewhere(os.getpid())
    assert started is not None
    assert started == processes._started_elsewhere(os.getpid())
    assert processes._started_elsewhere(2**22 + 1) is None


@pytest.fixture
def own_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(paths, "_SETTLING", -1.0)
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
    with scratch_directory("verify") as scratch:
        assert directories(own_directory) == {scratch}
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
    monkeypatch.setattr(paths, "_SETTLING", 60.0)
    old.mkdir()
    with scratch_directory("check"):
        assert old.exists(), "its owner may just be about to lock it"


FORK = """
import os, sys, threading
from sweeper.support.processes import fork

idle = threading.Thread(target=threading.Event().wait, daemon=True)
idle.start()
child = {fork}()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("fork", "warned"), [("fork", False), ("os.fork", sys.version_info >= (3, 12))]
)
def test_a_fork_beside_harmless_threads_prints_no_warning_and_a_bare_one_does(fork, warned):
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", FORK.format(fork=fork)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("multi-threaded" in ended.stderr) == warned, ended.stderr
