"""The ``sweeper`` that pages' shells find: forked from a process that has imported what it imports.

The command imports for more than a second, which is most of what it takes, and pages type dozens.
The client below takes its place in the shell: it lives as long as the command, ends as it ends, and the
command is killed with it. Its warm servers are forked, too: `shared_imports`.

This file is also the client, run as ``python -S -E shared_commands.py WORDS``, and the process. It
imports next to nothing.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import sys
import time

ADDRESS = "SWEEPER_TEST_COMMANDS"
"""The environment variable that has the path of the process' socket."""

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
    """A directory for ``PATH`` whose ``sweeper`` is forked, while the process lives.

    Args:
        directory: For the process' socket and for the program.
        environment: What pages' shells begin with. That directory is put into its ``PATH``, and the
            addresses that the program needs are added.
    """
    import subprocess
    from pathlib import Path

    from shared_imports import ADDRESS as IMPORTS
    from shared_imports import shared_imports

    programs = Path(directory) / "programs"
    programs.mkdir()
    program = programs / "sweeper"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -S -E {__file__} "$@"\n')
    program.chmod(0o755)
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    path = Path(directory) / "commands"
    with shared_imports(directory, {**os.environ, **environment}) as server:
        environment |= {ADDRESS: str(path), IMPORTS: os.environ[IMPORTS]}
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, path, *server],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
        )
        try:
            while not path.exists() and process.poll() is None:
                time.sleep(0.01)
            yield
        finally:
            process.kill()
            process.wait()


def _client(words):
    """Have the command run, and end as it ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ[ADDRESS])
    ignored = [number for number in _STOPS if signal.getsignal(number) is signal.SIG_IGN]
    asked = [words, os.getcwd(), dict(os.environ), ignored]  # noqa: PTH109 - pathlib is much
    message = json.dumps(asked).encode()
    descriptors = array.array("i", [0, 1, 2])
    connection.sendmsg(
        [len(message).to_bytes(8, "big")],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
    )
    connection.sendall(message)
    command = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    for number in _STOPS:
        signal.signal(number, lambda number, _: os.kill(command, number))
    status = int(connection.recv(16))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(path, server):
    """Import everything, then fork a command for each client until the pages are through."""
    import gc
    from importlib import import_module

    for name in WHAT_COMMANDS_IMPORT:
        import_module(name)
    from sweeper.execution.launch import server_process

    assert "tensorflow" not in sys.modules
    server_process._SERVER = tuple(server)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    while True:
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
        data += connection.recv(size - len(data))
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

    words, directory, environment, ignored = asked
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _STOPS:
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
    sys.argv = ["sweeper", *words]
    sys.exit(main())


if __name__ == "__main__":
    if os.environ.get(ADDRESS) == sys.argv[1]:
        _serve(sys.argv[1], sys.argv[2:])
    _client(sys.argv[1:])
