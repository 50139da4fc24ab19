"""Processes that begin together, forked from one that has imported everything."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

import sweeper

ROOT = Path(sweeper.__file__).parents[1]

PROCESSES = """
import json
import os
import sys
import time
import traceback
import warnings

import alembic.command
import optuna.storages
from sweeper.declarations.space import FloatRange
from sweeper.records.results import CheckpointRecord, EpochRecord
from sweeper.db.database import Database
from sweeper.db.attempts import Ending
from sweeper.db.repository import Claim, Repository, WorkerIdentity


def ready():
    os.write(1, b"ready\\n")
    assert os.read(begin, 1)


# Forked, so that one process imports for all; threads that an import began have nothing to do yet.
warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
begin, go = os.pipe()
while scripts := sys.stdin.readline():
    children = []
    for number, (script, *words) in enumerate(json.loads(scripts)):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                exec(script)
                os.write(1, f"{number} {said}\\n".encode())
            except BaseException:
                traceback.print_exc()
            os._exit(0)
    sys.stdin.readline()
    os.write(go, b"g" * len(children))
    ended = [os.waitpid(child, 0)[1] for child in children]
    os.write(1, f"ended {ended}\\n".encode())
"""
"""Scripts with words of their own, each in a process; what one leaves in ``said`` is its line.

For each line of such scripts that it is given; a second one has them begin together.
"""


@dataclass(frozen=True)
class Processes:
    """The process that has imported everything, and where it says what went wrong."""

    process: subprocess.Popen[str]
    errors: Path

    def run(self, scripts, seconds):
        """Let processes, a script and its words each, begin together; what each said, and no error."""
        stdin = self.process.stdin
        stdout = self.process.stdout
        assert stdin is not None
        assert stdout is not None
        hanging = threading.Timer(seconds, self.process.kill)
        hanging.start()
        try:
            stdin.write(json.dumps([list(map(str, script)) for script in scripts]) + "\n")
            stdin.flush()
            for _ in scripts:
                assert stdout.readline() == "ready\n", self.errors.read_text()
            stdin.write("go\n")
            stdin.flush()
            lines = [stdout.readline() for _ in range(len(scripts) + 1)]
        finally:
            hanging.cancel()
        assert self.errors.read_text() == ""
        outputs = dict(line.rstrip("\n").split(" ", 1) for line in lines)
        assert json.loads(outputs["ended"]) == [0] * len(scripts)
        return [outputs[str(number)] for number in range(len(scripts))]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    errors = tmp_path_factory.mktemp("processes") / "errors.txt"
    with (
        errors.open("w") as errors_file,
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROCESSES],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_file,
            text=True,
        ) as process,
    ):
        yield Processes(process, errors)
    assert process.returncode == 0, errors.read_text()
