"""The warm server: a process that has imported TensorFlow, Keras and the study, and run nothing.

Each trial is forked from it, fresh and isolated, in a hundredth of the time that importing
TensorFlow takes. That is safe only while TensorFlow has run no op: a process that has cannot be
forked without hanging sooner or later. So the server imports, checks that the eager context is
still untouched, freezes what it has imported (a forked child then copies fewer pages), and forks.
It has one thread, runs no factory, and ends when its worker does, with all that its trials started.

Where trials cannot be forked it imports nothing, and starts a Python of its own for each.

It speaks lines of JSON over one socket. A ``fork`` line carries the trial's end of the channel as a
file descriptor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from pydantic import TypeAdapter

from sweeper.definition import StudyDefinition
from sweeper.errors import StudyImportError, SweeperError
from sweeper.execution.launch.orphans import kill_orphans, start_watcher
from sweeper.execution.launch.output import log_to
from sweeper.execution.launch.peer_processes import fork_peers
from sweeper.execution.launch.sources import load_source
from sweeper.execution.protocol.channel import Channel
from sweeper.execution.protocol.messages import Assignment
from sweeper.execution.protocol.signals import release_signals, signals_to_stop
from sweeper.execution.protocol.study_source import StudySource
from sweeper.execution.trial.devices import import_tensorflow, uncollected
from sweeper.execution.trial.prctl import die_with_parent
from sweeper.execution.trial.process import failure_before_trial, serve_trial
from sweeper.training.replicas.multiworker import processes_of

_ASSIGNMENTS = TypeAdapter(Assignment)


def main(arguments: list[str]) -> None:
    """Entry: ``python -m sweeper.execution.launch.warm_server DESCRIPTOR DRIVER IMPORTS``."""
    control = socket.socket(fileno=int(arguments[0]))
    watcher = start_watcher(int(arguments[1]), control.close)
    # Not ignored, which a trial would inherit: whether SIGHUP is, as under nohup, is its own affair.
    for number in signals_to_stop():
        signal.signal(number, lambda *_: None)
    release_signals()
    server = _Server(control, watcher)
    if int(arguments[2]):
        _import_everything()
    request = server.read_line()
    if request is None:
        return
    if request["source"] is None:
        server.serve(None)
    else:
        definition = server.load(StudySource(**request["source"]))
        if definition is not None:
            server.serve(definition)
    kill_orphans(but=[] if watcher is None else [watcher])
    os._exit(0)


class _Server:
    def __init__(self, control: socket.socket, watcher: int | None = None) -> None:
        self._control = control
        self._not_orphans: set[int] = set() if watcher is None else {watcher}
        self._trials: set[int] = set()
        self._buffer = b""
        self._descriptors: list[int] = []

    def load(self, source: StudySource) -> StudyDefinition | None:
        """Import the study, and tell the worker how that went."""
        # Where trials cannot be forked this process has one thread and starts Pythons: what imports
        # NumPy or Keras is imported here, and not with this module.
        from sweeper.inspection.epochs import read_lengths
        from sweeper.training.randomness.seeds import IMPORT_SEED, seed_everything

        seed_everything(IMPORT_SEED)
        try:
            definition = load_source(source)
            settings = definition.settings().to_json()
            code = definition.code().to_json()
            reads = [dataclasses.asdict(each) for each in read_lengths(definition.factories())]
        except SweeperError as error:
            trace = error.traceback if isinstance(error, StudyImportError) else ""
            self._tell(event="failed", type=type(error).__name__, message=str(error), trace=trace)
            return None
        gc.collect()
        gc.freeze()
        self._tell(
            event="ready",
            settings=settings,
            code=code,
            threads_given=definition.threads is not None,
            cannot_fork=_why_not_fork(),
            processes=processes_of(definition.strategy),
            length_reads=reads,
        )
        return definition

    def serve(self, definition: StudyDefinition | None) -> None:
        """Fork a trial at each request, and tell of each that ends, until the worker is gone.

        Args:
            definition: The study's; None to start a fresh Python for each trial.
        """
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            # What came with the line before makes nothing ready to be read.
            ready = () if b"\n" in self._buffer else selector.select()
            if any(key.fileobj is wake_read for key, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    wake_read.recv(4096)
                self._reap()
            if not ready or any(key.fileobj is self._control for key, _ in ready):
                request = self.read_line()
                if request is None:
                    return
                self._fork(definition, request, (wake_read, wake_write, selector))

    def _fork(
        self, definition: StudyDefinition | None, request: dict[str, Any], own: tuple[Any, ...]
    ) -> None:
        descriptor = self._descriptors.pop(0)
        # The trial releases them when it can take them.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, signals_to_stop())
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            os.close(descriptor)
            self._tell(event="not forked", request=request["request"], error=str(error))
            return
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            self._trials.add(pid)
            os.close(descriptor)
            self._tell(event="forked", request=request["request"], pid=pid)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in own:
                each.close()
            # Another trial's end, held open here, would hide that trial's death from its worker.
            for other in self._descriptors:
                os.close(other)
            self._control.close()
            die_with_parent()
            channel = Channel.on(descriptor)
            try:
                assignment = _assignment(request["assignment"])
                log_to(assignment.log)
                if definition is None:
                    _become_trial(descriptor)
                peers = fork_peers(definition, assignment, channel.close)
            except Exception as error:
                channel.send(failure_before_trial(error))
            else:
                serve_trial(channel, assignment, lambda: definition, lambda _: peers)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self._trials:
                continue
            self._trials.remove(pid)
            # Whoever learns of it may begin the next attempt, beside which nothing of this one writes.
            self._not_orphans |= kill_orphans(but=self._trials | self._not_orphans)
            self._tell(event="exited", pid=pid, code=os.waitstatus_to_exitcode(status))

    def read_line(self) -> dict[str, Any] | None:
        """The next request; None when the worker is gone. Descriptors are queued as they come."""
        while b"\n" not in self._buffer:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
            except ConnectionError:
                return None
            for descriptor in descriptors:
                # Or a program that a trial starts would hold the trial's pipe open after its death.
                os.set_inheritable(descriptor, False)
            self._descriptors += descriptors
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line)
        return request

    def _tell(self, **said: Any) -> None:
        try:
            self._control.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            os._exit(0)


def _import_everything() -> None:
    with uncollected():
        import_tensorflow()
        import sweeper.execution.trial.run  # noqa: F401 - so that no trial has to import it
        from sweeper.inspection.code import read_keras

        read_keras()
        gc.freeze()


def _assignment(values: dict[str, Any]) -> Assignment:
    return _ASSIGNMENTS.validate_python(values)


def _become_trial(descriptor: int) -> NoReturn:
    """Have this process be a Python that has imported nothing, and runs one trial."""
    os.set_inheritable(descriptor, True)
    words = [sys.executable, "-P", "-m", "sweeper.execution.launch.spawned_trial", str(descriptor)]
    os.execv(sys.executable, words)  # noqa: S606 - no shell is meant


def _why_not_fork() -> str:
    """Why children of this process could hang, or an empty string."""
    from tensorflow.python.eager import context

    if context.context()._context_handle is not None:
        return "importing the study ran TensorFlow (built a model, or made a tensor)"
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"importing the study started threads ({names})"
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
