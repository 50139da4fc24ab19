"""The commands that tests fork from one process say, end and are killed as real ones."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import sweeps
from shared_commands import ForkedCommand
from sweeps import LIMIT, RunningCommand, command

WAITING = """
import signal
import sys

print("now pausing", file=sys.stderr, flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("words", "code"), [(("--version",), 0), (("status", "none"), 1), (("no-such-verb",), 2)]
)
def test_a_forked_command_says_what_a_real_one_says(
    words: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = command(*words, cwd=tmp_path)
    assert forked.code == code
    monkeypatch.setattr(sweeps, "_ENVIRONMENT", {})
    assert forked == command(*words, cwd=tmp_path)


@pytest.mark.parametrize("kind", [ForkedCommand, subprocess.Popen])
def test_either_is_interrupted_and_killed_with_its_processes(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is subprocess.Popen:
        monkeypatch.setattr(sweeps, "_ENVIRONMENT", {})
    (tmp_path / "waiting.py").write_text(WAITING)
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with RunningCommand("run", "waiting.py", cwd=tmp_path) as run:
            assert isinstance(run.process, kind)
            assert run.wait_for("now pausing"), run.err
            pid = run.process.pid
            assert os.getsid(pid) == os.getpgid(pid) == pid
            family = psutil.Process(pid).children(recursive=True)
            assert family, "its server, or nothing is shown of processes that are killed with it"
            assert run.process.poll() is None
            if number == signal.SIGKILL:
                run.kill_group()
            run.signal(number)
            assert run.end() == code, run.err
            assert run.process.poll() == run.process.returncode == code
        assert psutil.wait_procs(family, timeout=LIMIT)[1] == []


def test_a_command_of_another_environment_is_a_real_one(tmp_path: Path) -> None:
    with RunningCommand("--version", cwd=tmp_path, env={"OMP_NUM_THREADS": "1"}) as run:
        assert isinstance(run.process, subprocess.Popen)
        assert run.end() == 0
    with RunningCommand("--version", cwd=tmp_path, env={"SWEEPER_WORKERS": "1"}) as run:
        assert isinstance(run.process, ForkedCommand)
        assert run.end() == 0


def test_the_process_that_forks_ends_with_the_one_that_asked_for_it(tmp_path: Path) -> None:
    process = sweeps.started(tmp_path / "commands", dict(os.environ), ())
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(LIMIT) == 0
