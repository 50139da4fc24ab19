"""The ``sweeper`` of pages and tests: forked from a process that has imported what it imports.

The command imports for more than a second, which is most of what it takes; pages type dozens, and
tests more. In a page's shell the client below takes its place: it lives as long as the command, ends as
it ends, and the command is killed with it. A test has a `ForkedCommand`, which is used as a
``subprocess.Popen`` is. Their warm servers are forked, too: `shared_imports`.

This file is also the client, run as ``python -S -E shared_commands.py WORDS``, and the process. It
imports next to nothing.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shlex
import signal
import socket
import sys

ADDRESS = "SWEEPER_TEST_COMMANDS"
"""The environment variable that has the path of the process' socket."""

UNWATCHED = "SWEEPER_TEST_UNWATCHED"
"""The environment variable of commands whose studies are neither checked early nor audited."""

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_SERVER = ("-P", "-S", "-E", os.path.join(_TESTS, "execution", "shared_imports.py"))  # noqa: PTH118
"""What Python is to run for the warm server of a page's command."""

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WHAT_COMMANDS_IMPORT = (
    *("alembic.command", "pydantic_settings.main"),
    *("sweeper.cli.main", "sweeper.settings", "sweeper.report.terminal.listener"),
    *("sweeper.execution.early_check", "sweeper.execution.run", "sweeper.execution.serving"),
    *("sweeper.storage.repository", "sweeper.verification.verify"),
)
"""Sooner or later; not TensorFlow, which commands leave to their servers."""


@contextlib.contextmanager
def shared_commands(directory, environment):
    """A directory for ``PATH`` whose ``sweeper`` and ``python FILE`` are forked, while the process lives.

    It is forked from the run's own process, if there is one.

    Args:
        directory: For the process' socket and for the program.
        environment: What pages' shells begin with. That directory is put into its ``PATH``, and the
            addresses that the programs need are added.
    """
    from pathlib import Path

    from shared_imports import ADDRESS as IMPORTS
    from shared_imports import SERVER, await_socket, shared_imports

    programs = Path(directory) / "programs"
    programs.mkdir()
    forked = shlex.join([sys.executable, *SERVER, "run"])
    for name, text in {
        "sweeper": f'exec {sys.executable} -P -S -E {__file__} "$@"',
        "python": f'case "$1" in *.py) exec {forked} "$@";; esac\nexec {sys.executable} "$@"',
    }.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    if ADDRESS in os.environ:
        environment |= {ADDRESS: await_socket(os.environ[ADDRESS]), IMPORTS: os.environ[IMPORTS]}
        yield
        return
    path = Path(directory) / "commands"
    with shared_imports(directory, {**os.environ, **environment}) as server:
        environment |= {ADDRESS: str(path), IMPORTS: os.environ[IMPORTS]}
        process = started(path, {**os.environ, **environment}, server)
        try:
            yield
        finally:
            end(process)


@contextlib.contextmanager
def shared_processes(directory, environment):
    """What a whole run shares: where warm servers and tests' commands are forked from.

    They import while the run goes on.

    Args:
        directory: For their sockets.
        environment: Theirs.
    """
    from pathlib import Path

    import shared_imports

    from sweeper.execution.launch import server_process

    imports, commands = Path(directory) / "imports", Path(directory) / "commands"
    processes = [
        shared_imports.begun(str(imports), environment),
        begun(commands, environment, server_process._SERVER),
    ]
    os.environ |= {shared_imports.ADDRESS: str(imports), ADDRESS: str(commands)}
    try:
        yield
    finally:
        del os.environ[shared_imports.ADDRESS], os.environ[ADDRESS]
        for process in processes:
            end(process)


def begun(path, environment, server):
    """The process, which is not ready yet. It ends at the latest with the one that asks for it.

    Args:
        path: Of its socket.
        environment: Its own.
        server: What Python is to run for a warm server of a command that names none.
    """
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-P", __file__, path, *server],
        env={**environment, ADDRESS: str(path)},
        stdin=subprocess.PIPE,
    )


def started(path, environment, server):
    """The same, ready."""
    from shared_imports import await_socket

    process = begun(path, environment, server)
    await_socket(path, process)
    return process


def end(process):
    """End the process, though a command of it may still run."""
    process.kill()
    process.communicate()


class ForkedCommand:
    """``sweeper WORDS``, forked from the process; its output is text in pipes.

    Args:
        path: Of the process' socket.
        words: Of the command.
        directory: Where it is run; ``environment``: what it finds there.
        server: What Python is to run for its warm servers.
        session: Whether it has a session of its own, whose processes can be killed at once.

    Attributes:
        pid: Its own, and in a session of its own the group's.
        stdout: What it prints; ``stderr``: what it says.
        returncode: As ``subprocess`` gives it; ``None`` until its end has been seen.
    """

    def __init__(self, path, words, *, directory, environment, server, session):
        self.returncode = None
        self._words = words
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(path))
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        its_in = os.open(os.devnull, os.O_RDONLY)
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        try:
            asked = {"directory": str(directory), "server": server, "session": session}
            descriptors = [its_in, its_out, its_err]
            self.pid = _ask(self._connection, words, environment, descriptors, **asked)
        finally:
            for descriptor in (its_in, its_out, its_err):
                os.close(descriptor)

    def poll(self):
        return self._end_within(0)

    def wait(self, timeout=None):
        import subprocess

        if self._end_within(timeout) is None:
            raise subprocess.TimeoutExpired(self._words, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _end_within(self, seconds):
        import select

        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._connection.recv(16))
            self._connection.close()
        return self.returncode


def _ask(connection, words, environment, descriptors, **asked):
    """Have a command run; its process."""
    asked |= {"words": words, "environment": dict(environment)}
    asked["ignored"] = [n for n in _STOPS if signal.getsignal(n) is signal.SIG_IGN]
    message = json.dumps(asked).encode()
    connection.sendmsg(
        [len(message).to_bytes(8, "big")],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))],
    )
    connection.sendall(message)
    return int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")


def _client(words):
    """Have the command run, and end as it ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    here = os.getcwd()  # noqa: PTH109 - pathlib is much
    command = _ask(connection, words, os.environ, [0, 1, 2], directory=here, server=_SERVER)
    for number in _STOPS:
        signal.signal(number, lambda number, _: os.kill(command, number))
    status = int(connection.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(path, server):
    """Import everything, then fork a command for each client until standard input ends."""
    import gc
    import select
    from importlib import import_module
    from pathlib import Path

    for name in WHAT_COMMANDS_IMPORT:
        import_module(name)
    from sweeper.execution.launch import server_process

    assert "tensorflow" not in sys.modules
    server_process._SERVER = tuple(server)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    Path(path + ".new").rename(path)  # who sees it can connect
    while select.select([0, listener], [], [])[0] == [listener]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _stand_by(connection)
            os._exit(0)
        connection.close()


def _stand_by(connection):
    """Fork the command that one client asks for, and wait for the end of either."""
    import select

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 3)
    size, data = int.from_bytes(length, "big"), b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return  # the client was killed while it asked
        data += more
    command = os.fork()
    if command == 0:
        connection.close()
        _become_command(json.loads(data), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(command.to_bytes(8, "big"))
    ended = os.pidfd_open(command)
    ready, _, _ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    with contextlib.suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become_command(asked, descriptors):
    import tempfile

    from sweeper.cli.main import main
    from sweeper.execution.launch import server_process

    if asked.get("session"):
        os.setsid()
    if asked.get("server"):
        server_process._SERVER = tuple(asked["server"])
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    tempfile.tempdir = None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _STOPS:
        if number in asked["ignored"]:
            signal.signal(number, signal.SIG_IGN)
    if UNWATCHED in os.environ:
        leave_unwatched(setattr)
    sys.argv = ["sweeper", *asked["words"]]
    sys.exit(main())


def leave_unwatched(set_attribute):
    """Neither check a new study early nor audit its trials, as where trials run inline.

    Args:
        set_attribute: ``setattr``, or what undoes it in the end.
    """
    from sweeper.execution import serving

    audited = serving.Auditor

    def unaudited(context):
        auditor = audited(context)
        auditor.policy = "off"
        return auditor

    set_attribute(serving, "Auditor", unaudited)
    leave_unchecked(set_attribute)


def leave_unchecked(set_attribute):
    """Do not check a new study early, as where trials run inline."""
    from sweeper.execution import early_check

    checked = early_check.EarlyCheck

    def unchecked(prepared, _launcher, listener):
        return checked(prepared, None, listener)

    set_attribute(early_check, "EarlyCheck", unchecked)


if __name__ == "__main__":
    if os.environ.get(ADDRESS) == sys.argv[1]:
        _serve(sys.argv[1], sys.argv[2:])
    else:
        _client(sys.argv[1:])
