"""Launchers of trial processes: forked from a fork server, or spawned.

Both launchers return a `TrialProcess`; they differ only in speed. Trials are forked wherever that is
safe. Otherwise they are spawned, and the run reports the reason. Inline trials have no process: see
`sweeper.run.worker.inline`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    kill_tree,
    running,
)
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource

_MOST_SERVERS = 3
"""Maximum number of fork servers that die in a row without forking a trial."""


_WAKES_EVERY = 0.2
"""Seconds between two wake-ups of a thread that waits for the server."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading the study's module in the fork server.

    Attributes:
        threads_given: Whether the definition itself sets the number of threads.
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


class WarmServer:
    """The worker's side of `sweeper.run.launch.warm_server`.

    Args:
        source: The study that the server imports; None for a server that starts a new Python for each
            trial.
        process: An unused server process that was started before the study was known; None to start
            one.

    Raises:
        ExecutionError: The system gives no process.
    """

    def __init__(self, source: StudySource | None, process: ServerProcess | None = None) -> None:
        self.source = source
        self._sending = threading.Lock()
        self._ready: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._forked: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._exits: dict[int, ExitStatus] = {}
        self._changed = threading.Condition()
        self._requests = 0
        self.alive = True
        self._imported_by_trials = ""
        self._process = process or ServerProcess(imports=source is not None)
        self._control = self._process.control
        self._say({"source": None if self.source is None else dataclasses.asdict(self.source)}, ())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def loaded_source(self) -> StudySource:
        """Return the source of the study that the server imports.

        Raises:
            ExecutionError: The server imports no study.
        """
        if self.source is None:
            msg = "the fork server was started without a study, so it cannot import one"
            raise ExecutionError(msg)
        return self.source

    def loaded(self) -> Loaded:
        """Wait until the study is imported; from then on, ``source.code`` is known.

        Raises:
            StudyFileError, StudyImportError, DefinitionError: Importing the study raised the error.
            DefinitionChangedError: The code differs from ``source.code``.
            ExecutionError: The server died.
        """
        said = None
        while said is None:
            # The main thread handles signals only when it wakes.
            with contextlib.suppress(queue.Empty):
                said = self._ready.get(timeout=_WAKES_EVERY)
        self._ready.put(said)
        if said["event"] == "ready":
            self.source = dataclasses.replace(self.loaded_source, code=said["code"])
            self._imported_by_trials = said["imported_by_trials"]
            code = self.source.defined_code or said["code"]
            return Loaded(
                StudySettings.from_json(said["settings"]),
                bool(said["threads_given"]),
                said["cannot_fork"],
                CodeFingerprint.from_json(code),
                said["imported_by_trials"],
            )
        if said["event"] == "failed":
            kind = getattr(errors, said["type"], SweeperError)
            if issubclass(kind, StudyImportError):
                raise kind(said["message"], said["trace"])
            raise kind(said["message"])
        status = ExitStatus(self._process.wait())
        msg = f"the process that imports the study {status.describe()}; see its output above"
        raise ExecutionError(msg)

    def fork(self, assignment: Assignment) -> _ForkedTrial | None:
        """Return a new trial process, or None if the server is dead.

        Raises:
            ExecutionError: The system gives no process.
        """
        if self._imported_by_trials:
            assignment = dataclasses.replace(assignment, source=self.source)
        channel, theirs = Channel.pair()
        answer: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._changed:
            self._requests += 1
            request = self._requests
            self._forked[request] = answer
        said = {"request": request, "assignment": dataclasses.asdict(assignment)}
        forked = None
        if self.alive:
            self._say(said, (theirs.fileno(),))
            forked = answer.get()
        theirs.close()
        if forked is not None and forked["event"] == "forked":
            return _ForkedTrial(self, channel, forked["pid"])
        channel.close()
        if forked is None:
            return None
        msg = (
            f"no process could be forked for trial {assignment.number}: {forked['error']}; use "
            "fewer workers, or free memory"
        )
        raise ExecutionError(msg)

    def exit_of(self, pid: int, timeout: float) -> ExitStatus | None:
        """Return how the process ``pid`` ended; None if it still runs after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exits or not self.alive, timeout)
            if pid in self._exits:
                return self._exits.pop(pid)
            return None if self.alive else ExitStatus(None)

    def close(self) -> None:
        """End the server and wait for it; its trials end with it. May be called again."""
        self.alive = False
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.end(patience=2)
        self._listener.join()
        self._control.close()

    def _say(self, said: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        data = json.dumps(said).encode() + b"\n"
        with self._sending:
            try:
                if descriptors:
                    sent = socket.send_fds(self._control, [data], list(descriptors))
                    data = data[sent:]
                self._control.sendall(data)
            except OSError:
                self._died()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._control.makefile("rb") as lines:
            for line in lines:
                self._received(json.loads(line))
        self._died()

    def _received(self, said: dict[str, Any]) -> None:
        if said["event"] in ("ready", "failed"):
            self._ready.put(said)
        elif said["event"] in ("forked", "not forked"):
            self._forked.pop(said["request"]).put(said)
        else:
            with self._changed:
                self._exits[said["pid"]] = ExitStatus(said["code"])
                self._changed.notify_all()

    def _died(self) -> None:
        with self._changed:
            self.alive = False
            waiting, self._forked = self._forked, {}
            self._changed.notify_all()
        for answer in waiting.values():
            answer.put(None)
        self._ready.put({"event": "died"})


class _ForkedTrial:
    def __init__(self, server: WarmServer, channel: Channel, pid: int) -> None:
        self._server = server
        self.channel = channel
        self.pid = pid
        self._process = running(pid)
        self._status: ExitStatus | None = None

    def wait(self, timeout: float) -> ExitStatus | None:
        if self._status is None:
            self._status = self._server.exit_of(self.pid, timeout)
        return self._status

    def kill(self) -> None:
        status = self.wait(0)
        if status is None or status.code is None:
            kill_tree(self._process)


class ForkLauncher:
    """Launcher that forks trials from a fork server with the imported study; a dead server is replaced."""

    isolation: Isolation = "fork"

    def __init__(self, server: WarmServer | None) -> None:
        self._server = server
        self._replacing = threading.Lock()

    def launch(self, assignment: Assignment) -> TrialProcess:
        for _ in range(_MOST_SERVERS):
            trial = self._living().fork(assignment)
            if trial is not None:
                return trial
        msg = (
            f"the process from which trials are started died {_MOST_SERVERS} times in a row; find "
            "out what kills it, or use isolation='spawn'"
        )
        raise ExecutionError(msg)

    def _living(self) -> WarmServer:
        with self._replacing:
            if self._server is None:
                self._server = WarmServer(None)
            elif not self._server.alive:
                self._server.close()
                self._server = WarmServer(self._server.source)
                if self._server.source is not None:
                    self._server.loaded()
            return self._server

    def close(self) -> None:
        """End the server; its trials end with it."""
        with self._replacing:
            if self._server is not None:
                self._server.close()


class SpawnLauncher(ForkLauncher):
    """Launcher that starts a new Python for every trial."""

    isolation: Isolation = "spawn"

    def __init__(self, source: StudySource) -> None:
        super().__init__(None)
        self._source = source

    def launch(self, assignment: Assignment) -> TrialProcess:
        trial = super().launch(assignment)
        order = dataclasses.replace(assignment, source=self._source)

        def send() -> None:
            # If the process has already died, its worker notices that as for any other process.
            with contextlib.suppress(OSError):
                trial.channel.send(order)

        # A pickled study may be larger than the pipe, and Python needs seconds until it reads.
        threading.Thread(target=send, name="sweeper-order", daemon=True).start()
        return trial


def choose_launcher(server: WarmServer, loaded: Loaded, isolation: str) -> Launcher:
    """Return a launcher that forks from ``server`` if that is safe and requested; otherwise one that spawns.

    ``server`` has imported the study with the result ``loaded``.

    Raises:
        DefinitionError: ``isolation`` is ``"fork"`` and trials cannot be forked.
    """
    if isolation == "fork" and loaded.cannot_fork:
        msg = f"processes cannot be forked: {loaded.cannot_fork}; use isolation='spawn' or 'auto'"
        raise DefinitionError(msg)
    if isolation != "spawn" and not loaded.cannot_fork:
        return ForkLauncher(server)
    server.close()
    return SpawnLauncher(server.loaded_source)


@contextmanager
def open_launcher(
    source: StudySource,
    isolation: str,
    notice: Callable[[str], None],
    what: str = "replay",
) -> Iterator[tuple[Launcher, Loaded]]:
    """Context manager for a launcher and the loaded study.

    Args:
        source: Location of the study's definition.
        isolation: ``"auto"``, ``"fork"`` or ``"spawn"``.
        notice: Receives the reason if processes have to be spawned with ``"auto"``.
        what: Purpose of the processes, for errors and notices.

    Raises:
        UsageError: ``isolation`` is ``"inline"``: a replay needs a separate process.
        StudyFileError, StudyImportError, DefinitionError: The study cannot be loaded, or cannot be
            forked although ``isolation`` is ``"fork"``.
    """
    if isolation == "inline":
        msg = (
            f"every {what} needs a fresh process, so isolation 'inline' cannot be used; use 'auto'"
        )
        raise UsageError(msg)
    server = WarmServer(source)
    launcher: Launcher | None = None
    try:
        loaded = server.loaded()
        launcher = choose_launcher(server, loaded, isolation)
        if isolation == "auto" and loaded.cannot_fork:
            notice(f"every {what} starts a new Python, because {loaded.cannot_fork}")
        yield launcher, loaded
    finally:
        (launcher or server).close()
