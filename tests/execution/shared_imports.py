"""One process of the test run imports TensorFlow; warm servers of tests are forked from it.

A warm server imports TensorFlow for three seconds, and most tests that run a sweep start one. Here a
process that has imported the same, and run nothing, forks them instead. The client below takes the
server's place in the process tree: it lives as long as the server, ends as it ends, and the server is
killed with it. Files that test how servers start and end have real ones: ``REAL_SERVERS = True`` stands
in them.

This file is also the client: it is run with ``python -S -E shared_imports.py DESCRIPTOR DRIVER
IMPORTS`` in place of ``python -m sweeper.execution.launch.warm_server``, and imports next to nothing.
With ``run FILE WORDS`` instead it stands for ``python FILE WORDS``, where the file imports TensorFlow, and
with ``run -c TEXT`` for ``python -c TEXT``.
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

ADDRESS = "SWEEPER_TEST_IMPORTS"
"""The environment variable that has the path of the process' socket."""

_RUN = "run"
"""The first word where a file is to be run, and no warm server."""

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OWN = (
    *("SWEEPER_", "PYTEST_", "OLDPWD", "PWD", "SHLVL", "_"),
    *("COLUMNS", "LINES", "TERM", "NO_COLOR", "CI"),
    *("AWS_", "PGPASS", "RAY_AUTH_", "DASK_", "PATH", "TMPDIR"),
)
"""Beginnings of variables that change nothing of what is imported: those of object stores, databases and
clusters are read when these are opened, and programs and directories are looked for when they are used."""

_BY_TENSORFLOW = (
    *("TF2_BEHAVIOR", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION", "KMP_"),
    *("ENABLE_RUNTIME_UPTIME_TELEMETRY", "HDF5_PLUGIN_PATH"),
)
"""What importing TensorFlow or Keras sets, at once or when it is first needed."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def importing(environment):
    """What of an environment may change what is imported, or how."""
    kept = {n: v for n, v in environment.items() if not n.startswith((*_OWN, *_BY_TENSORFLOW))}
    return {n: v for n, v in kept.items() if (n, v) != ("PYTHONPATH", _ROOT)}


SERVER = ("-P", "-S", "-E", __file__)
"""What Python is to run in place of a warm server."""


@contextlib.contextmanager
def shared_imports(directory, environment):
    """The process, started; its socket is in ``directory``, and in the environment as ``ADDRESS``.

    Args:
        directory: For the socket.
        environment: Of the process; servers for another one are real ones.

    Yields:
        What Python is to run in place of a warm server.
    """
    path = os.path.join(directory, "imports")
    process = begun(path, environment)
    outer = os.environ.get(ADDRESS)
    os.environ[ADDRESS] = path
    try:
        await_socket(path, process)
        yield SERVER
    finally:
        if outer is None:
            del os.environ[ADDRESS]
        else:
            os.environ[ADDRESS] = outer
        process.kill()
        process.wait()


def begun(path, environment):
    """The process, which is not ready yet.

    Args:
        path: Of its socket.
        environment: Its own.
    """
    import subprocess

    from sweeper.execution.launch.environment import is_credential
    from sweeper.execution.launch.hash_seed import HASH_SEED

    kept = {name: value for name, value in environment.items() if not is_credential(name)}
    return subprocess.Popen(
        [sys.executable, "-P", __file__, "serve", path],
        env={**kept, **HASH_SEED, "PYTHONPATH": _ROOT},
        stdin=subprocess.DEVNULL,
    )


def await_socket(path, process=None):
    """Wait until a process listens, or has ended, if that is told; the socket's path."""
    while not os.path.exists(path) and (process is None or process.poll() is None):
        time.sleep(0.01)
    return path


def _client(words):
    """Ask for a server, and end as it ends; where none is to be had, become one."""
    path = os.environ[ADDRESS]
    connection = socket.socket(socket.AF_UNIX)
    own = [] if words[0] == _RUN else [int(words[0])]
    asked = {
        "words": words,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "ignored": [n for n in _STOPS if signal.getsignal(n) is signal.SIG_IGN],
    }
    try:
        connection.connect(path)
        message = json.dumps(asked).encode()
        descriptors = array.array("i", [0, 1, 2, *own])
        connection.sendmsg(
            [len(message).to_bytes(8, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
        )
        connection.sendall(message)
        answer = connection.recv(1)
    except OSError:
        answer = b""
    if answer != b"y":
        server = ["-m", "sweeper.execution.launch.warm_server", *words]
        os.execv(sys.executable, [sys.executable, "-P", *(server if own else words[1:])])
    for descriptor in own:
        os.close(descriptor)
    for number in _STOPS:
        signal.signal(number, lambda *_: None)
    code = connection.recv(16)
    status = int(code) if code else -signal.SIGKILL
    if status < 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(path):
    """Import everything, then fork a server for each client until the test run is gone."""
    own = importing(os.environ)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)  # who sees it can connect
    from sweeper.execution.launch import warm_server

    warm_server._import_everything()
    warm_server._import_everything = lambda: None
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            with contextlib.suppress(OSError):
                _stand_by(connection, own, warm_server)
            os._exit(0)
        connection.close()


def _stand_by(connection, own, warm_server):
    """Fork the server that one client asks for, and wait for the end of either."""
    import select

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
    size, data = int.from_bytes(length, "big"), b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return  # the client was killed while it asked
        data += more
    asked = json.loads(data)
    if asked["words"][0] == _RUN:
        # What stands for a script has this process' own: none was asked for.
        asked["environment"].setdefault("PYTHONHASHSEED", os.environ["PYTHONHASHSEED"])
    if importing(asked["environment"]) != own:
        connection.sendall(b"n")
        return
    connection.sendall(b"y")
    server = os.fork()
    if server == 0:
        connection.close()
        _become_server(asked, descriptors, warm_server)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(server)
    ready, _, _ = select.select([connection, ended], [], [])
    if ended not in ready:
        os.kill(server, signal.SIGKILL)
    _, status = os.waitpid(server, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become_server(asked, descriptors, warm_server):
    import tempfile

    try:
        for standard, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["directory"])
        tempfile.tempdir = None
        for number in _STOPS:
            ignored = number in asked["ignored"]
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        if asked["words"][0] == _RUN:
            os._exit(_ran(*asked["words"][1:]))
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        os.setpgid(0, 0)
        driver = int(asked["words"][1])
        real = os.getppid
        watch = warm_server.start_watcher

        def start_watcher(process, close):
            os.getppid = lambda: driver
            try:
                return watch(process, close)
            finally:
                os.getppid = real

        warm_server.start_watcher = start_watcher
        words = [str(descriptors[3]), *asked["words"][1:]]
        sys.argv = ["warm_server", *words]
        sys.orig_argv = list(sys.argv)
        sys.stdout.reconfigure(line_buffering=False)
        warm_server.main(words)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _ran(file, *words):
    """Run the file as a program, whose servers are forked, too; its exit code."""
    import runpy
    import types

    from sweeper.execution.launch import server_process

    server_process._SERVER = SERVER
    if "SWEEPER_TEST_UNWATCHED" in os.environ:
        sys.path.append(os.path.join(_ROOT, "tests", "docs"))
        from shared_commands import leave_unwatched

        sys.path.pop()
        leave_unwatched(setattr)

    sys.argv = [file, *(words[1:] if file == "-c" else words)]
    try:
        if file == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(words[0], vars(sys.modules["__main__"]))
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
            runpy.run_path(file, run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    _client(sys.argv[1:])
