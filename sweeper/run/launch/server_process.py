"""The process that becomes a warm server: its environment and hash seed, and its start.

Importing TensorFlow takes seconds, and takes them while the command reads its settings, imports the
database's side and finds the study. This module imports next to nothing, so that a command can
begin the process first.

What lets a worker into the database and the cluster is of no use to a trial, which knows neither;
its code, and every library that it loads, would only be able to print it or send it away. Keys of
object stores stay, because the trial's own process writes its checkpoints there.

Python draws the seed of its hashes anew for each process unless the environment names it. A split by
``hash(name)``, or anything that goes by a set's order, would then differ from process to process,
and with it a resumed trial from an undisturbed one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any, Self

from sweeper.errors import ExecutionError
from sweeper.run.signals import signals_held

HASH_SEED = {"PYTHONHASHSEED": "0"}
"""Hash seed in the environment of a Python that runs trials."""


def hashes_differ() -> bool:
    """Return whether this process hashes strings differently from processes of trials.

    The environment does not say so: a script that sets the variable itself changes nothing.
    """
    return bool(sys.flags.hash_randomization)


_CREDENTIALS = re.compile(
    r"SWEEPER_STORAGE|SWEEPER_ENGINE_ADDRESS"
    r"|PG[A-Z]+"  # libpq's: PGPASSWORD, PGPASSFILE, PGHOST, …; all of them, none is a trial's
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
    kept = {name: value for name, value in os.environ.items() if not is_credential(name)}
    return {**kept, **HASH_SEED}


_SERVER = ("-P", "-m", "sweeper.run.launch.warm_server")
"""Arguments with which Python runs as a server."""


class ServerProcess:
    """A warm server's process and the socket to it.

    As a context it ends, at the latest, with the block.

    Args:
        imports: Whether it imports TensorFlow before it is asked for anything.

    Attributes:
        control: This side of the socket.

    Raises:
        ExecutionError: The system gives no process.
    """

    def __init__(self, *, imports: bool = True) -> None:
        ours, theirs = socket.socketpair()
        words = [
            sys.executable,
            *_SERVER,
            str(theirs.fileno()),
            str(os.getpid()),
            str(int(imports)),
        ]
        try:
            with signals_held():
                self._process = subprocess.Popen(
                    words,
                    pass_fds=[theirs.fileno()],
                    env=trial_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__
                    if _has_descriptor(sys.__stderr__)
                    else subprocess.DEVNULL,
                )
        except OSError as error:
            ours.close()
            msg = f"the warm server could not be started: {error}"
            raise ExecutionError(msg) from error
        finally:
            theirs.close()
        self.control = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """Wait for its end, and return its exit code as `subprocess` does."""
        return self._process.wait()

    def end(self, *, patience: float) -> None:
        """Wait for its end, then kill it. May be called again."""
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.end(patience=0)
        self.control.close()


def begin_server(isolation: str) -> AbstractContextManager[ServerProcess | None]:
    """Start the server for this isolation; return None for inline trials."""
    return contextlib.nullcontext() if isolation == "inline" else ServerProcess()


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
