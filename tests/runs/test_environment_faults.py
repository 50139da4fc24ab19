"""A full disk, and a process that cannot begin, are the environment's: no trial pays for them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from scripted_trials import ScriptedTrial, finish, scripted_sweep

from sweeper.errors import DataError, SweeperError
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Failed, Message
from sweeper.run.trial.link import failure_of
from sweeper.run.worker.slot import serve_slot

LAST = """
import dataclasses, json, os, sys
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment

def assignment(**changes):
    return Assignment(**{
        "study": "s", "number": 0, "attempt": 1, "seed": 0, "epochs": 1, "objective": "loss",
        "deterministic": True, "threads": 1, "checkpoint_every": "epoch", "files": "files",
        "log": "log.txt", "checkpoints": ("checkpoints",), **changes,
    })
"""


def last_words(code: str, directory: Path, *, log: str = os.devnull) -> tuple[Message | None, int]:
    """What a process that runs ``code`` with a channel's DESCRIPTOR says, and its exit code."""
    ours, theirs = Channel.pair()
    with Path(log).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LAST + dedent(code), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=directory,
            stdout=output,
            stderr=output,
        )
    theirs.close()
    try:
        said = ours.receive(60)
    except EOFError:
        said = None
    # Closed before it has ended, it would say that it has lost its worker.
    code = process.wait(60)
    ours.close()
    return said, code


FAILING = """
from sweeper.run.trial import process
process.look_for_gpus = lambda: None
process.configure_tensorflow = lambda **_: None

def load():
    print("a line of the trial's own")
    sys.stdout.flush()
    raise ValueError("no such layer")

process.serve_trial(Channel.on(int(sys.argv[1])), assignment(), load)
os._exit(0)
"""


def test_a_trial_on_a_full_disk_tells_its_failure_before_it_prints_it(tmp_path: Path) -> None:
    said, code = last_words(FAILING, tmp_path, log="/dev/full")
    assert isinstance(said, Failed)
    assert said.fault == "environment"
    assert "No space left on device" in said.error
    assert code == 0, "printing the traceback failed, and with it the process"


def test_the_same_trial_on_a_disk_with_room_fails_for_its_own_error(tmp_path: Path) -> None:
    said, code = last_words(FAILING, tmp_path, log=str(tmp_path / "log"))
    assert isinstance(said, Failed)
    assert (said.fault, said.error, code) == ("trial", "ValueError: no such layer", 0)
    assert "no such layer" in (tmp_path / "log").read_text()


FORKING = """
import socket, time
from sweeper.run.launch.warm_server import _Server

control, worker = socket.socketpair()
server = _Server(control)
server._descriptors.append(int(sys.argv[1]))
assigned = dataclasses.asdict(assignment(log=os.path.join("nowhere", "log.txt")))
server._fork({"request": 1, "assignment": assigned}, ())
os.wait()
"""


def test_a_log_that_cannot_be_opened_is_reported_as_such_and_is_no_crash(tmp_path: Path) -> None:
    said, _ = last_words(FORKING, tmp_path)
    assert isinstance(said, Failed)
    assert said.fault == "environment"
    assert "its process could not start: FileNotFoundError" in said.error
    assert "nowhere/log.txt" in said.error


class UnknownError(Exception):
    """As TensorFlow's, which has no errno."""


UnknownError.__module__ = "tensorflow.python.framework.errors_impl"


def chained(error: BaseException, cause: BaseException) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "rows.csv"), "environment"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "environment"),
        (OSError(errno.EROFS, "Read-only file system"), "environment"),
        (OSError("Can't write data (errno = 28, error message = 'No space left on device')"), "environment"),
        (UnknownError("events.out: No space left on device"), "environment"),
        (chained(RuntimeError("the callback failed"), OSError(errno.ENOSPC, "full")), "environment"),
        (chained(DataError("no cache"), OSError(errno.EDQUOT, "spent")), "environment"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "trial"),
        (PermissionError(errno.EACCES, "Permission denied"), "trial"),
        (ValueError("No space left on device"), "trial"),
    ],
)  # fmt: skip
def test_what_the_disk_refuses_is_distinguished_from_what_the_code_did(
    error: BaseException, fault: str
) -> None:
    assert failure_of(error).fault == fault


def test_a_full_disk_stops_the_run_as_resumable_and_charges_no_trial(tmp_path: Path) -> None:
    def fill(trial: ScriptedTrial) -> int:
        trial.say(failure_of(OSError(errno.ENOSPC, "No space left on device")))
        return 0

    with scripted_sweep(tmp_path, {(0, 1): fill}, trials=2) as sweep:
        serve_slot(sweep.context)
        assert isinstance(sweep.context.error, SweeperError)
        assert "can be resumed" in str(sweep.context.error)
        assert sweep.outcomes() == ["interrupted"]
        assert len(sweep.trials) == 1, "the next trial would meet the same disk"
        sweep.launcher.scripts = {None: finish}
        sweep.context.error = None
        sweep.context.stopping.clear()
        serve_slot(sweep.context)
        assert [t.state for t in sweep.trials] == ["complete", "complete"]
