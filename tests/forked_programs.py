"""Programs of tests, forked from one process that has imported what they import.

A fork server imports TensorFlow for three seconds, a command of sweeper its own for one, and tests
start hundreds of both. Here one process, the *service*, has imported all of it and run nothing, and
forks a process for each program that is asked for: it gets the directory, environment, descriptors
and signals that it would have been started with, and is killed with whoever asked for it. (Files of
tests are forked by pytest itself: `file_processes`.)

The client asks, which stands where Python would be started: ``python -P -S -E forked_programs.py WORDS``
for ``python -P WORDS``. It lives as long as the program and ends as it ends. Where the environment would
change what is imported, it becomes the real thing.

This file is also the client and the service; as the client it imports next to nothing.
"""

import array
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time

SECONDS = "SWEEPER_TEST_SECONDS"
"""Names the file to which a program that has ended adds its processor seconds, those of its own included."""

ADDRESS = "SWEEPER_TEST_FORKS"
"""The environment variable that has the path of the service's socket."""

PROGRAM = ("-P", "-S", "-E", os.path.abspath(__file__))
"""What Python is to run before the words of a program that is forked."""

WARM_SERVER = (*PROGRAM, "-m", "sweeper.run.launch.warm_server")
"""What Python is to run for a fork server that is forked."""

_COMMANDS_IMPORT = (
    *("alembic.command", "pydantic_settings.main"),
    *("sweeper.cli.main", "sweeper.declarations.settings", "sweeper.views.terminal.live"),
    *("sweeper.run.run", "sweeper.run.serving"),
    *("sweeper.db.repository", "sweeper.checks.verify"),
    *("IPython.core.interactiveshell", "sklearn.datasets"),  # of the documentation's pages
)

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWN = (
    *("SWEEPER_", "PYTEST_", "OLDPWD", "PWD", "SHLVL", "_"),
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "CI"),
    *("AWS_", "PGPASS", "RAY_AUTH_", "DASK_", "PATH", "TMPDIR", "XDG_CACHE_HOME"),
)
"""Beginnings of variables that change nothing of what is imported: those of object stores, databases and
clusters are read when these are opened, and programs and directories are looked for when they are used."""

_BY_TENSORFLOW = (
    *("TF2_BEHAVIOR", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION", "KMP_"),
    *("ENABLE_RUNTIME_UPTIME_TELEMETRY", "HDF5_PLUGIN_PATH"),
)
"""What importing TensorFlow or Keras sets, at once or when it is first needed."""

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def importing(environment):
    """What of an environment may change what is imported, or how."""
    variables = {n: v for n, v in environment.items() if not n.startswith((*_OWN, *_BY_TENSORFLOW))}
    # The hash seed of a program that names none is nobody's choice, and may be the service's.
    seed = {"PYTHONHASHSEED": variables.get("PYTHONHASHSEED", "0")}
    return {n: v for n, v in (variables | seed).items() if (n, v) != ("PYTHONPATH", _ROOT)}


class Service:
    """The process that forks. It ends, at the latest, with the one that begins it.

    Args:
        directory: For its socket.
        environment: Its own; programs of another one are real ones.

    Attributes:
        path: Of its socket.
    """

    def __init__(self, directory, environment):
        import subprocess

        from sweeper.run.launch.server_process import HASH_SEED, is_credential

        self.path = os.path.join(directory, "forks")
        variables = {
            name: value
            for name, value in environment.items()
            if not is_credential(name) and name != SECONDS  # its programs write their own
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", self.path],
            env={**variables, **HASH_SEED, "PYTHONPATH": _ROOT},
            stdin=subprocess.PIPE,
        )

    def wait(self):
        """Return once it has imported everything, or has ended."""
        while not os.path.exists(self.path) and self._process.poll() is None:
            time.sleep(0.01)

    def end(self):
        """End it, though a program of it may still run; return how it ended."""
        self._process.stdin.close()
        return self._process.wait()


def programs_for_shells(directory):
    """Put ``sweeper`` and ``python`` into a directory for ``PATH``: both forked, ``python`` for files."""
    from pathlib import Path

    Path(directory).mkdir()
    forked = shlex.join([sys.executable, *PROGRAM])
    for name, text in {
        "sweeper": f'exec {forked} -m sweeper "$@"',
        "python": f'case "$1" in *.py) exec {forked} "$@";; esac\nexec {sys.executable} "$@"',
    }.items():
        program = Path(directory) / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)


def _ask(words, descriptors):
    """Ask for a program, which has these descriptors of this process.

    Returns:
        The connection, which has its end, and its process; 0 where none is to be had.
    """
    asked = {
        "words": words,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "descriptors": descriptors,
        "ignored": [n for n in _STOPS if signal.getsignal(n) is signal.SIG_IGN],
        "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "parent": os.getppid(),
    }
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ.get(ADDRESS, ""))
        message = json.dumps(asked).encode()
        numbers = array.array("i", descriptors)
        connection.sendmsg(
            [len(message).to_bytes(8, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)],
        )
        connection.sendall(message)
        return connection, int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    except OSError:
        return connection, 0


def _status(connection):
    """The end of a program: its exit code, or minus the signal; that of a kill if nothing is said."""
    answer = connection.recv(16)
    return int(answer) if answer else -signal.SIGKILL


def _client(words):
    """Ask for a program, and end as it ends; where none is to be had, become it."""
    inherited = [int(name) for name in os.listdir("/proc/self/fd")]
    shared = [n for n in inherited if n < 3 or (_is_open(n) and os.get_inheritable(n))]
    connection, program = _ask(words, shared)
    if not program:
        flags = ["-P"] if words[0].startswith("-") else []
        os.execv(sys.executable, [sys.executable, *flags, *words])
    for descriptor in shared:
        if descriptor > 2:
            os.close(descriptor)
    for number in _STOPS:
        signal.signal(number, lambda number, _: os.kill(program, number))
    status = _status(connection)
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _serve(path):
    """Import everything, then fork a program for each that asks, until standard input ends."""
    import gc
    import select
    from importlib import import_module

    environment = importing(os.environ)  # as it was given, and not as the imports leave it

    from sweeper.run.launch import server_process, warm_server
    from sweeper.support import processes

    warm_server._import_everything()
    warm_server._import_everything = lambda: None
    for name in _COMMANDS_IMPORT:
        # What is not installed fails in the program that needs it.
        with contextlib.suppress(ImportError):
            import_module(name)
    server_process._SERVER = WARM_SERVER
    gc.collect()
    gc.freeze()
    assert not warm_server._why_not_fork(), warm_server._why_not_fork()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)  # who sees it is served
    while select.select([0, listener], [], [])[0] == [listener]:
        connection, _ = listener.accept()
        if processes.fork() == 0:
            listener.close()
            with contextlib.suppress(OSError):
                _stand_by(connection, environment)
            os._exit(0)
        connection.close()
    os._exit(0)


def _stand_by(connection, environment):
    """Fork the program that one client asks for, and wait for the end of either."""
    import select

    from sweeper.support import processes

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 32)
    if not length:
        return  # the client went away without asking
    size = int.from_bytes(length, "big")
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return  # the client was killed while it asked
        data += more
    asked = json.loads(data)
    if importing(asked["environment"]) != environment:
        connection.sendall(bytes(8))
        return
    program = processes.fork()
    if program == 0:
        connection.close()
        _become(asked, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(program.to_bytes(8, "big"))
    ended = os.pidfd_open(program)
    ready, _, _ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(program, signal.SIGKILL)
    _, status, used = os.wait4(program, 0)
    if SECONDS in asked["environment"]:
        with open(asked["environment"][SECONDS], "a") as file:
            file.write(f"{used.ru_utime + used.ru_stime}\n")
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked, descriptors):
    """Be the program, from its first line to its end."""
    import fcntl
    import tempfile

    code = 1
    try:
        os.setpgid(0, 0)
        # Above all numbers that they are to have.
        above = max(asked["descriptors"]) + 1
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
        for descriptor in descriptors:
            os.close(descriptor)
        for descriptor, number in zip(high, asked["descriptors"], strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["directory"])
        tempfile.tempdir = None
        for number in _STOPS:
            ignored = number in asked["ignored"]
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN if ignored else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
        code = _ran(asked["words"], asked["parent"])
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(code)


def _ran(words, parent):
    """Run a file, a text or a module as a program; its exit code."""
    import runpy
    import types

    sys.orig_argv = [sys.executable, *words]
    try:
        match words:
            case ["-m", "sweeper.run.launch.warm_server", *own]:
                sys.argv = ["warm_server", *own]
                sys.stdout.reconfigure(line_buffering=False)
                _be_warm_server(own, parent)
            case ["-m", module, *own]:
                sys.argv = [module, *own]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", text, *own]:
                sys.argv = ["-c", *own]
                sys.modules["__main__"] = types.ModuleType("__main__")
                exec(text, vars(sys.modules["__main__"]))
            case [file, *own]:
                sys.argv = [file, *own]
                sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
                runpy.run_path(file, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def _be_warm_server(words, parent):
    from sweeper.run.launch import warm_server

    watch = warm_server.start_watcher
    real = os.getppid

    def start_watcher(driver, close):
        # It looks whether its parent, which here is the client's, is gone already.
        os.getppid = lambda: parent
        try:
            return watch(driver, close)
        finally:
            os.getppid = real

    warm_server.start_watcher = start_watcher
    warm_server.main(words)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    _client(sys.argv[1:])
