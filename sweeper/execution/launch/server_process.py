"""The process that becomes a warm server, begun before it is known what it is to serve.

Importing TensorFlow takes seconds, and takes them while the command reads its settings, imports the
database's side and finds the study. This module imports next to nothing, so that a command can
begin the process first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any, Self

from sweeper.errors import ExecutionError
from sweeper.execution.launch.environment import trial_environment
from sweeper.execution.protocol.signals import signals_held

_SERVER = ("-P", "-m", "sweeper.execution.launch.warm_server")
"""What Python is to run as a server."""


class ServerProcess:
    """A process that runs `sweeper.execution.launch.warm_server`, and the socket to it.

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
        """Wait for its end, and return how it ended, as `subprocess` says it."""
        return self._process.wait()

    def end(self, *, patience: float) -> None:
        """Wait so many seconds for its end, then kill it. May be called again."""
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
    """The process for a run whose trials are isolated so, begun; ``None`` for inline ones."""
    return contextlib.nullcontext() if isolation == "inline" else ServerProcess()


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
