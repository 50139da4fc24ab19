"""Launchers of trial processes: forked from a fork server, or spawned by one that imports nothing.

Trials are forked wherever that is safe. Otherwise they are spawned, and the run reports the reason.
Inline trials have no process: see `sweeper.run.worker.inline`.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from sweeper import errors
from sweeper.definition.definition import StudySettings
from sweeper.errors import (
    DefinitionError,
    ExecutionError,
    StudyImportError,
    SweeperError,
    UsageError,
)
from sweeper.records.code import CodeFingerprint
from sweeper.run.launch.server_process import ServerProcess
from sweeper.run.launch.trial_process import (
    ExitStatus,
    Isolation,
    Launcher,
    TrialProcess,
    received_from,
)
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource

_MOST_SERVERS = 3
"""Maximum number of servers that die in a row without starting a trial."""


_WAKES_EVERY = 0.2
"""Seconds between two wake-ups of a thread that waits for the server."""


@dataclass(frozen=True, slots=True)
class StudyCode:
    """Result of loading the study's module in the fork server.

    Attributes:
        threads_given: Whether the definition itself sets the number of threads.
        directed_by_name: The objectives whose direction is that of their name.
        cannot_fork: The reason for which trials must be spawned; empty if they can be forked.
        imported_by_trials: The reason for which each forked trial imports the study in its own
            process; empty if trials are forked from a process that has imported it.
        code: Fingerprint of the code that the study's factories reach.
    """

    settings: StudySettings
    threads_given: bool
    cannot_fork: str
    code: CodeFingerprint | None = None
    imported_by_trials: str = ""
    directed_by_name: tuple[str, ...] = ()


class WarmServer:
    """The worker's side of `sweeper.run.launch.warm_server`; a server that has died is replaced.

    ``process`` was started before the study was known; one is started if it is None.

    Raises:
        ExecutionError: The system gives no process.
    """

    def __init__(self, source: StudySource, process: ServerProcess | None = None) -> None:
        self.source = source
        self.isolation: Isolation = "fork"
        self._imported_by_trials = ""
        self._reply: dict[str, Any] | None = None
        self._asking = threading.Lock()
        self._attach(process or ServerProcess())

    def loaded(self) -> StudyCode:
        """Wait until the study is imported; from then on, ``source.code`` is known.

        Raises:
            StudyFileError, StudyImportError, DefinitionError: Importing the study raised the error.
            DefinitionChangedError: The code differs from ``source.code``.
            ExecutionError: The server died.
        """
        # The main thread handles signals only when it wakes.
        while self._reply is None and not self._connection.poll(_WAKES_EVERY):
            pass
        reply = self._reply = self._reply or received_from(self._connection)
        if reply is None:
            status = ExitStatus(self._process.wait())
            raise ExecutionError(
                f"the process that imports the study {status.describe()}; see its output above"
            )
        if reply["event"] == "failed":
            kind = getattr(errors, reply["type"], SweeperError)
            if issubclass(kind, StudyImportError):
                raise kind(reply["message"], reply["trace"])
            raise kind(reply["message"])
        self.source = replace(self.source, code=reply["code"])
        self._imported_by_trials = reply["imported_by_trials"]
        return StudyCode(
            StudySettings.from_json(reply["settings"]),
            bool(reply["threads_given"]),
            reply["cannot_fork"],
            CodeFingerprint.from_json(self.source.defined_code or reply["code"]),
            reply["imported_by_trials"],
            tuple(reply["directed_by_name"]),
        )

    def launch(self, assignment: Assignment) -> TrialProcess:
        """Start a process for ``assignment``, from a new server if this one is dead."""
        for _ in range(_MOST_SERVERS):
            # Descriptors follow a request on their own, so requests must not mix; and one caller replaces a
            # dead server.
            with self._asking:
                trial = self._start(assignment)
                if trial is not None:
                    return trial
                self.close()
                self._attach(ServerProcess(imports=self.isolation == "fork"))
                if self.isolation == "fork":
                    self.loaded()
        raise ExecutionError(
            f"the process from which trials are started died {_MOST_SERVERS} times in a row; find "
            "out what kills it, or use isolation='spawn'"
        )

    def choose_isolation(
        self,
        loaded: StudyCode,
        isolation: str,
        notify: Callable[[str], None] = lambda _: None,
        what: str = "process",
    ) -> None:
        """Spawn processes from now on if they cannot be forked as requested; ``loaded`` is what was imported.

        ``notify`` receives the reason if they have to be spawned with ``"auto"``, and ``what`` is their purpose.
        """
        if isolation == "fork" and loaded.cannot_fork:
            raise DefinitionError(
                f"processes cannot be forked: {loaded.cannot_fork}; use isolation='spawn' or 'auto'"
            )
        if isolation != "spawn" and not loaded.cannot_fork:
            return
        if isolation == "auto":
            notify(
                f"every {what} starts a new Python, which takes some seconds, because {loaded.cannot_fork}"
            )
        self.close()
        self.isolation = "spawn"
        self._attach(ServerProcess(imports=False))

    def close(self) -> None:
        """End the server and wait for it; its trials end with it. May be called again."""
        # The server ends when it reads the end of its requests. `shutdown` ends them even if a process that
        # was forked from this one holds a copy of the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.end(patience=2)
        self._connection.close()
        self._control.close()

    def _attach(self, process: ServerProcess) -> None:
        self._process = process
        self._control = process.control
        self._reply = None
        self._connection = Connection(os.dup(process.control.fileno()))
        self._send({"source": asdict(self.source) if self.isolation == "fork" else None})

    def _start(self, assignment: Assignment) -> TrialProcess | None:
        """Return a new trial process, or None if the server is dead."""
        if self._imported_by_trials or self.isolation == "spawn":
            assignment = replace(assignment, source=self.source)
        channel, trial_end = Channel.pair()
        reports, writer = Pipe(duplex=False)
        with trial_end, writer:
            self._send({"assignment": asdict(assignment)}, trial_end.fileno(), writer.fileno())
        started = received_from(reports)
        if started is not None and "pid" in started:
            return TrialProcess(channel, reports, started["pid"])
        channel.close()
        reports.close()
        if started is None:
            return None
        raise ExecutionError(
            f"no process could be forked for trial {assignment.number}: {started['error']}; use "
            "fewer workers, or free memory"
        )

    def _send(self, request: dict[str, Any], *descriptors: int) -> None:
        """Send a request to the server; if it is dead, its reports end."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(request).encode())
            if descriptors:
                socket.send_fds(self._control, [b"."], descriptors)


@contextmanager
def open_launcher(
    source: StudySource,
    isolation: str,
    notify: Callable[[str], None],
    what: str = "replay",
) -> Iterator[tuple[Launcher, StudyCode]]:
    """Context manager for a launcher and the loaded study; see `WarmServer.choose_isolation`."""
    if isolation == "inline":
        raise UsageError(
            f"every {what} needs a fresh process, so isolation 'inline' cannot be used; use 'auto'"
        )
    with contextlib.closing(WarmServer(source)) as launcher:
        loaded = launcher.loaded()
        launcher.choose_isolation(loaded, isolation, notify, what)
        yield launcher, loaded
