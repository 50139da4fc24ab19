"""Process that becomes a fork server: its environment, its hash seed and its start.

A command starts this process first, so that it imports TensorFlow while the command reads its settings,
imports SQLAlchemy and finds the study. So this module imports little.

Credentials of the database and the cluster are removed from the environment, because trials need
neither. Those of object stores stay, because trial processes write checkpoints there.

Python draws a new hash seed for each process unless the environment sets it. A split by ``hash(name)``,
or the order of a set, would then differ between processes, and so would a resumed trial.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

from sweeper.errors import ExecutionError
from sweeper.run.signals import signals_held

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Environment variable with the hash seed of processes that run trials."""


def hashes_differ() -> bool:
    """Return whether this process hashes strings differently from trial processes.

    ``sys.flags`` is read, since setting the variable in a running process has no effect.
    """
    return bool(sys.flags.hash_randomization)


_CREDENTIALS = re.compile(
    r"SWEEPER_STORAGE|SWEEPER_ENGINE_ADDRESS"
    r"|PG[A-Z]+"  # all variables of libpq: PGPASSWORD, PGPASSFILE, PGHOST, …
    r"|RAY_AUTH_\w+|RAY_ADDRESS|RAY_REDIS_\w+"
    r"|DASK_(?:SCHEDULER_ADDRESS|GATEWAY__\w+|DISTRIBUTED__COMM__TLS__\w+|PARENT_CONFIG"
    r"|INTERNAL_INHERIT_CONFIG)",
    re.IGNORECASE,
)


def is_credential(variable: str) -> bool:
    """Return whether an environment variable of that name gives access to the database or the cluster."""
    return _CREDENTIALS.fullmatch(variable) is not None


def trial_environment() -> dict[str, str]:
    """Return the environment for a Python that runs trials: this one's, without credentials."""
    environment = {name: value for name, value in os.environ.items() if not is_credential(name)}
    return {**environment, **HASH_SEED}


LOCKS: set[int] = set()
"""Descriptors that the servers of this process inherit: locks that hold until all its trials have ended."""

_SERVER = ("-P", "-m", "sweeper.run.launch.warm_server")
"""Arguments with which Python runs as a fork server."""


class ServerProcess(contextlib.AbstractContextManager["ServerProcess"]):
    """Process of a fork server, and the socket ``control`` to it; as a context manager, it ends the process.

    ``imports`` is whether the server imports TensorFlow before the first request.
    """

    def __init__(self, *, imports: bool = True) -> None:
        worker_end, server_end = socket.socketpair()
        arguments = map(str, (server_end.fileno(), os.getpid(), int(imports)))
        try:
            with signals_held():
                self._process = subprocess.Popen(
                    [sys.executable, *_SERVER, *arguments],
                    pass_fds=[server_end.fileno(), *LOCKS],
                    env=trial_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__
                    if _has_descriptor(sys.__stderr__)
                    else subprocess.DEVNULL,
                )
        except OSError as error:
            worker_end.close()
            raise ExecutionError(f"the fork server could not be started: {error}") from error
        finally:
            server_end.close()
        self.control = worker_end
        self.pid = self._process.pid

    def wait(self) -> int:
        """Wait for the process, and return its exit code as `subprocess` does."""
        return self._process.wait()

    def end(self, *, patience: float) -> None:
        """Wait up to ``patience`` seconds for the process, then kill it. Idempotent."""
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *_exception: object) -> None:
        self.end(patience=0)
        self.control.close()


def begin_server(isolation: str) -> AbstractContextManager[ServerProcess | None]:
    """Return a context manager with the server for this isolation; None for inline trials."""
    return contextlib.nullcontext() if isolation == "inline" else ServerProcess()


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
