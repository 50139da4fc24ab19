"""A process is known by more than its id."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from sweeper.support import processes
from sweeper.support.processes import ProcessIdentity, is_gone

MACHINE, BOOT, NAMESPACE = ProcessIdentity.here().boot_id.split("/")


@pytest.fixture
def me():
    return ProcessIdentity.here()


def test_this_process_is_alive_and_the_same_each_time(me):
    assert ProcessIdentity.here() == me
    assert me.pid == os.getpid()
    assert is_gone(me) is False
    # Systems without /proc are asked through psutil.
    started = processes._started_elsewhere(me.pid)
    assert started is not None
    assert started == processes._started_elsewhere(me.pid)
    assert processes._started_elsewhere(2**22 + 1) is None


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        (lambda me: {"started": me.started + 0.01}, True),
        (lambda _: {"boot_id": f"{MACHINE}/another-boot/{NAMESPACE}"}, True),
        (lambda _: {"boot_id": f"{MACHINE}/{BOOT}/1"}, None),
        (lambda _: {"boot_id": f"another-machine/{BOOT}/{NAMESPACE}"}, None),
        (lambda _: {"host": "elsewhere"}, None),
    ],
    ids=["process id used again", "rebooted", "another pid namespace", "same name", "other host"],
)
def test_what_cannot_be_known_is_not_called_gone(me, change, gone):
    worker = replace(me, **change(me))
    assert is_gone(worker) is gone


def test_another_boot_of_a_machine_without_an_id_may_be_another_machine(me, monkeypatch):
    """Two hosts of one name, made of one image that has no machine id."""
    monkeypatch.setattr(processes, "_boot_id", lambda: f"/{BOOT}/{NAMESPACE}")
    assert is_gone(replace(me, boot_id=f"/another-boot/{NAMESPACE}")) is None
    assert is_gone(replace(me, boot_id=f"/{BOOT}/{NAMESPACE}")) is False


def test_a_killed_process_is_gone_before_and_after_it_is_waited_for(me):
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        started = processes._started(child.pid)
        assert started is not None
        worker = replace(me, pid=child.pid, started=started)
        assert is_gone(worker) is False
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(worker) is True
    finally:
        child.kill()
        child.communicate()
    assert is_gone(worker) is True


def test_a_hidden_process_is_not_called_gone(me, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError

    gone = replace(me, pid=2**22 + 1)
    assert is_gone(gone) is True
    monkeypatch.setattr(os, "kill", refuse)
    assert is_gone(gone) is None
