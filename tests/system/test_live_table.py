"""A real run in a real terminal: the table, Ctrl-C, how to go on, and piped the same in lines."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import pytest
from study_files import PACED, StudyText
from sweeps import COMMAND, LIMIT, RunningCommand, _environment
from terminals import Screen

from sweeper.run.launch import server_process

STUDY = StudyText(
    callbacks=PACED,
    arguments='objective="val_loss", epochs=100, trials=3, sampler="random", audit="off"',
)
"""Too long to end before it is interrupted; lines tell each tenth epoch."""

COLUMNS = 80
LINES = 24

_PROGRAM = f"import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0){COMMAND}"


class TerminalCommand:
    """``sweeper WORDS`` in a terminal of its own, whose screen can be read and keys be pressed."""

    def __init__(self, process, terminal):
        self.process = process
        self.screen = Screen(COLUMNS, LINES)
        self.written = ""
        self._terminal = terminal

    def until(self, condition):
        """The screen, once it is as ``shown`` says."""
        deadline = time.monotonic() + LIMIT
        while not condition(self.screen.lines):
            assert time.monotonic() < deadline, "\n".join(self.screen.lines)
            if not self._read():
                pytest.fail("the command ended before:\n" + self.written)
        return self.screen.lines

    def press(self, key):
        os.write(self._terminal, key)

    def end(self):
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(LIMIT)

    def _read(self):
        ready, _, _ = select.select([self._terminal], [], [], LIMIT)
        assert ready, "nothing was drawn for too long:\n" + "\n".join(self.screen.lines)
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            # So Linux says that nobody has the other end open any more.
            return False
        text = data.decode(errors="replace")
        self.written += text
        self.screen.write(text)
        return bool(data)


@contextmanager
def in_terminal(*words, cwd):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**_environment({"TERM": "xterm", "CI": ""}), "NO_COLOR": ""}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(server=server_process._SERVER), *words],
        cwd=cwd,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        yield TerminalCommand(process, controller)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(LIMIT)
        os.close(controller)


def heading(lines):
    return next((line for line in lines if line.startswith("small ")), "")


HINT = "Ctrl-C checkpoints and stops; resume with: sweeper resume small --workers 2"


def rows(lines):
    """The rows of running trials."""
    return [line for line in lines if line.startswith("trial ") and " epoch " in line]


def trained(lines):
    """The rows of trials that have finished an epoch: a trial without a step has nothing to resume from."""
    return [row for row in rows(lines) if " epoch 1/" not in row]


def test_a_run_in_a_terminal_is_drawn_and_ctrl_c_says_what_it_waits_for_and_how_to_go_on(tmp_path):
    STUDY.write(tmp_path / "small.py")
    with in_terminal("run", "small.py", "--workers", "2", cwd=tmp_path) as run:
        # What was read may end in the middle of a drawing.
        lines = run.until(
            lambda screen: heading(screen) != "" and len(trained(screen)) == 2 and HINT in screen
        )
        assert heading(lines).startswith("small  0/3 done, 2 running, 1 waiting")
        assert sorted(row.split()[1] for row in rows(lines)) == ["0", "1"]
        run.press(b"\x03")
        assert run.end() == 130, run.written
        assert "stopping: every trial finishes its step" in run.written
        ended = run.screen.lines
    assert ended[-1] == "  sweeper resume small --workers 2"
    assert sum("interrupted" in line and "attempt 1" in line for line in ended) == 2
    assert HINT not in ended
    assert rows(ended) == [], "the rows are gone"
    logs = [log.read_text() for log in tmp_path.glob("runs/small/trial-*/attempt-*/log.txt")]
    assert logs == ["", ""], "a log begins with what the trial itself says"

    words = ("resume", "small", "--workers", "2")
    with RunningCommand(*words, cwd=tmp_path) as second:
        resumed = second.wait_for("attempt 2 resumed at step") or ""
        assert resumed.rstrip().endswith("[0/3 done, no best yet]")
        assert second.wait_for("epoch", "/100", "[0/3 done, no best yet]")
        second.kill_group()
    assert "\x1b" not in second.err, "nothing is redrawn in a pipe"
