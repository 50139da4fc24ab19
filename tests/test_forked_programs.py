"""Programs that tests fork say, end and are killed as real ones, and are forked where they may be."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_programs import PROGRAM, programs_for_shells

from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.sources import target_source

STUDY = Path(__file__).parents[1] / "benchmarks" / "noop_study.py"


REPORT = """
import json, os, signal, sys
print(json.dumps([
    sys.argv, os.getcwd(), os.environ["SWEEPER_TEST_WORD"], sys.path[0] == sys.argv[0][:-10],
    signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, os.read(int(sys.argv[2]), 9).decode(),
]))
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("ending", [0, 3, "shell"])
def test_a_forked_file_finds_what_a_real_one_finds(ending, tmp_path):
    """Words, directory, environment, path, ignored signals, descriptors; and ends as it ends."""
    (tmp_path / "report.py").write_text(REPORT)
    programs_for_shells(tmp_path / "programs")
    ended = []
    for real in (False, True):
        reader, writer = os.pipe()
        os.write(writer, b"a message")
        os.close(writer)
        words = [sys.executable, *(() if real else PROGRAM)]
        if ending == "shell" and not real:
            words = [str(tmp_path / "programs" / "python")]
        words = ["env", "--ignore-signal=TERM", *words, tmp_path / "report.py"]
        process = subprocess.run(
            [*words, str(ending if ending == 3 else 0), str(reader)],
            cwd=tmp_path,
            env={**os.environ, "SWEEPER_TEST_WORD": "given"},
            pass_fds=[reader],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(reader)
        ended.append((process.returncode, process.stdout.replace(str(reader), "N"), process.stderr))
    assert ended[0] == ended[1]
    assert ended[0][0] == (ending if ending == 3 else 0)
    assert '"given", true, true, "a message"' in ended[0][1], ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_forked_text_that_kills_itself_ends_by_that_signal(number):
    text = f"import os; os.kill(os.getpid(), {number:d})"
    assert subprocess.run([sys.executable, *PROGRAM, "-c", text], check=False).returncode == -number


def test_a_forked_server_dies_with_its_client():
    server = WarmServer(target_source(str(STUDY)))
    server.loaded()
    os.kill(server._process.pid, 9)
    assert server._process.wait() == -9
    server.close()
