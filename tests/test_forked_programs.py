"""Programs that tests fork say, end and are killed as real ones, and are forked where they may be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import sweeps
from forked_programs import ADDRESS, PROGRAM, ForkedProgram, Service, programs_for_shells
from sweeps import LIMIT, RunningCommand, command

from sweeper.run.launch.launchers import WarmServer
from sweeper.run.launch.sources import target_source

STUDY = Path(__file__).parents[1] / "benchmarks" / "noop_study.py"

WAITING = """
import signal
import sys

print("now pausing", file=sys.stderr, flush=True)
signal.pause()
"""

REPORT = """
import json, os, signal, sys
print(json.dumps([
    sys.argv, os.getcwd(), os.environ["SWEEPER_TEST_WORD"], sys.path[0] == sys.argv[0][:-10],
    signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, os.read(int(sys.argv[2]), 9).decode(),
]))
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("words", "code"), [(("--version",), 0), (("status", "none"), 1), (("no-such-verb",), 2)]
)
def test_a_forked_command_says_what_a_real_one_says(
    words: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = command(*words, cwd=tmp_path)
    assert forked.code == code
    monkeypatch.setattr(sweeps, "_ENVIRONMENT", {"OMP_NUM_THREADS": "1"})
    assert forked == command(*words, cwd=tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("kind", [ForkedProgram, subprocess.Popen])
def test_either_is_interrupted_and_killed_with_its_processes(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is subprocess.Popen:
        monkeypatch.setattr(sweeps, "_ENVIRONMENT", {"OMP_NUM_THREADS": "1"})
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


@pytest.mark.parametrize("how", [0, 3, "shell"])
def test_a_forked_file_finds_what_a_real_one_finds(how: int | str, tmp_path: Path) -> None:
    """Words, directory, environment, path, ignored signals, descriptors; and ends as it ends."""
    (tmp_path / "report.py").write_text(REPORT)
    programs_for_shells(tmp_path / "programs")
    ended = []
    for real in (False, True):
        given, giving = os.pipe()
        os.write(giving, b"a message")
        os.close(giving)
        words = [sys.executable, *(() if real else PROGRAM)]
        if how == "shell" and not real:
            words = [str(tmp_path / "programs" / "python")]
        done = subprocess.run(
            [
                *("env", "--ignore-signal=TERM", *words, str(tmp_path / "report.py")),
                *(str(how if how == 3 else 0), str(given)),
            ],
            cwd=tmp_path,
            env={**os.environ, "SWEEPER_TEST_WORD": "given"},
            pass_fds=[given],
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(given)
        ended.append((done.returncode, done.stdout.replace(str(given), "N"), done.stderr))
    assert ended[0] == ended[1]
    assert ended[0][0] == (how if how == 3 else 0)
    assert '"given", true, true, "a message"' in ended[0][1], ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_forked_text_that_kills_itself_ends_by_that_signal(number: int) -> None:
    text = f"import os; os.kill(os.getpid(), {number:d})"
    assert subprocess.run([sys.executable, *PROGRAM, "-c", text], check=False).returncode == -number


@pytest.mark.whole
def test_a_program_of_another_environment_is_a_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, kind in (
        ("OMP_NUM_THREADS", subprocess.Popen),
        ("SWEEPER_WORKERS", ForkedProgram),
    ):
        with RunningCommand("--version", cwd=tmp_path, env={variable: "1"}) as run:
            assert isinstance(run.process, kind)
            assert run.end() == 0
    assert any(word.endswith("forked_programs.py") for word in words_of_server())
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert "sweeper.run.launch.warm_server" in words_of_server()
    assert not any(word.endswith("forked_programs.py") for word in words_of_server())


def words_of_server() -> list[str]:
    """Of a fork server that has loaded its study."""
    server = WarmServer(target_source(str(STUDY)))
    assert server.loaded().settings.name
    words = psutil.Process(server._process.pid).cmdline()
    server.close()
    assert not server.alive
    return words


def test_a_forked_server_dies_with_its_client() -> None:
    server = WarmServer(target_source(str(STUDY)))
    server.loaded()
    os.kill(server._process.pid, 9)
    assert server._process.wait() == -9
    server._listener.join(20)
    assert not server.alive
    server.close()


def test_a_service_for_a_while_has_imports_of_its_own_and_ends_with_who_began_it(
    tmp_path: Path,
) -> None:
    before = os.environ[ADDRESS]
    probe = ["-c", "import sys; sys.exit('chess' in sys.modules or 'this' not in sys.modules)"]

    def imported() -> int:
        return subprocess.run(
            [sys.executable, *PROGRAM, *probe], stdout=subprocess.DEVNULL, check=False
        ).returncode

    with Service(str(tmp_path), os.environ, ("this", "chess"), PROGRAM) as service:
        assert os.environ[ADDRESS] == service.path
        assert imported() == 0
    assert os.environ[ADDRESS] == before
    assert imported() == 1, "the control: the outer one has not imported it"
    assert service.end() == 0
