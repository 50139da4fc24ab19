"""A worker is known by more than its process id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from sweeper.storage import workers
from sweeper.storage.workers import WorkerIdentity, worker_is_gone

ME = WorkerIdentity.here()
MACHINE, BOOT, NAMESPACE = ME.boot_id.split("/")


def test_this_process_is_alive_and_the_same_each_time() -> None:
    assert WorkerIdentity.here() == ME
    assert ME.pid == os.getpid()
    assert worker_is_gone(ME) is False


@pytest.mark.parametrize(
    ("worker", "gone"),
    [
        (replace(ME, started=ME.started + 0.01), True),
        (replace(ME, boot_id=f"{MACHINE}/another-boot/{NAMESPACE}"), True),
        (replace(ME, boot_id=f"{MACHINE}/{BOOT}/1"), None),
        (replace(ME, boot_id=f"another-machine/{BOOT}/{NAMESPACE}"), None),
        (replace(ME, host="elsewhere"), None),
    ],
    ids=["process id used again", "rebooted", "another pid namespace", "same name", "other host"],
)
def test_what_cannot_be_known_is_not_called_gone(worker: WorkerIdentity, gone: bool | None) -> None:
    assert worker_is_gone(worker) is gone


def test_a_killed_process_is_gone_before_and_after_it_is_waited_for() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        started = workers._started(child.pid)
        assert started is not None
        worker = replace(ME, pid=child.pid, started=started)
        assert worker_is_gone(worker) is False
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert worker_is_gone(worker) is True
    finally:
        child.kill()
        child.communicate()
    assert worker_is_gone(worker) is True


def test_a_hidden_process_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError

    gone = replace(ME, pid=2**22 + 1)
    assert worker_is_gone(gone) is True
    monkeypatch.setattr(os, "kill", refuse)
    assert worker_is_gone(gone) is None


def test_systems_without_proc_are_asked_through_psutil() -> None:
    started = workers._started_elsewhere(ME.pid)
    assert started is not None
    assert started == workers._started_elsewhere(ME.pid)
    assert workers._started_elsewhere(2**22 + 1) is None
