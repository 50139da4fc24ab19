"""Fork server: a process that has imported TensorFlow, Keras and the study, and has run no op.

Each trial is forked from it, which takes a hundredth of the time of importing TensorFlow. That is safe
only while TensorFlow has run no op: a process that has run one hangs sooner or later if it is forked.
So the study is imported by a child of the process that has imported TensorFlow. If the import ran no
op, the child freezes the garbage collector's objects (a fork then copies fewer pages) and becomes the
server, and its parent waits for it. Otherwise the child exits and its parent becomes the server: each
trial then imports the study in its own process.

The server has one thread, runs no factory, and ends when its worker ends, with all processes that its
trials started. If trials cannot be forked, it imports nothing and starts a new Python for each trial.

Requests are JSON over one socket. A request to fork is followed by two file descriptors: the trial's end
of the channel, and a pipe to which the server reports the trial's pid and, later, its exit code.
"""

import contextlib
import gc
import json
import mmap
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, cast

from pydantic import TypeAdapter

from sweeper.errors import StudyImportError, SweeperError
from sweeper.run.launch.orphans import kill_orphans, start_watcher
from sweeper.run.launch.sources import import_study
from sweeper.run.launch.trial_process import received_from
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource
from sweeper.run.signals import release_signals, signals_to_stop
from sweeper.run.trial.link import failure_before_trial
from sweeper.run.trial.process import serve_trial
from sweeper.support.processes import adopt_orphans, die_with_parent, fork
from sweeper.support.tensorflow_start import import_tensorflow, uncollected


def log_to(path: str) -> None:
    """Redirect this process's output to a log in a directory that exists."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


_ASSIGNMENTS = TypeAdapter(Assignment)


def main(arguments: list[str]) -> None:
    """Entry: ``python -m sweeper.run.launch.warm_server DESCRIPTOR DRIVER IMPORTS``, or ``spawned CHANNEL ORDER``."""
    if arguments[0] == "spawned":
        _run_spawned(*map(int, arguments[1:]))
    control = socket.socket(fileno=int(arguments[0]))
    # Trials inherit the descriptors, and programs that they start (which get the standard
    # streams) do not: one that stays would hold a check's lock.
    for entry in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            if int(entry.name) > 2:
                os.set_inheritable(int(entry.name), False)
    watcher = start_watcher(int(arguments[1]), control.close)
    # Handled and not ignored, because trials would inherit that; under nohup, SIGHUP stays ignored.
    for number in signals_to_stop():
        signal.signal(number, lambda *_: None)
    release_signals()
    imports = bool(int(arguments[2]))
    server = _Server(control, watcher, spawns=not imports)
    if imports:
        _import_everything()
    request = received_from(server.control)
    if request is None:
        return
    if request["source"] is not None:
        server.load(StudySource(**request["source"]))
    server.serve()
    server.end(0)


class _Server:
    def __init__(
        self, control: socket.socket, watcher: int | None = None, *, spawns: bool = False
    ) -> None:
        self._socket = control
        self.control = Connection(os.dup(control.fileno()))
        self._spawns = spawns
        self._not_orphans: set[int] = set() if watcher is None else {watcher}
        self._trials: dict[int, Connection] = {}
        self._definition: Any = None

    def load(self, source: StudySource) -> None:
        """Import the study in a child, and report the result to the worker.

        This returns only in the process that becomes the server; other processes exit.
        """
        # The study's file must not see this program's arguments.
        sys.argv = [source.target]
        cannot_fork = _why_not_fork("importing TensorFlow and Keras")
        if cannot_fork:
            self._import(source, cannot_fork)
            return
        # Where the import runs TensorFlow, the child exits, and this process serves.
        self._continue_in_child(lambda: not self._import(source))

    def end(self, code: int) -> NoReturn:
        """End this process and the orphans of its trials; a negative code is minus a signal."""
        kill_orphans(but=self._not_orphans)
        if code < 0:
            # SIGKILL and SIGSTOP have no handler to reset.
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    def _continue_in_child(self, prepare: Callable[[], bool]) -> None:
        """Call ``prepare`` in a forked child, and return in the child if that returns True, else here.

        Only one process returns: either the child exits, or the parent waits for the child and then
        exits with the same code.
        """
        # Shared memory, because user code may end the child with any exit code.
        unfit = mmap.mmap(-1, 1)
        # The only threads are those of libraries that wait for work, such as OpenBLAS's: see _why_not_fork.
        pid = fork()
        if pid == 0:
            die_with_parent()
            adopt_orphans()
            self._not_orphans = set()
            code = 1
            try:
                fit = prepare()
                # Otherwise each trial would flush its copy of the import's output.
                sys.stdout.flush()
                if fit:
                    gc.collect()
                    gc.freeze()
                    return
                unfit[0] = 1
                code = 0
            except BaseException:
                traceback.print_exc()
            # If TensorFlow has run, the usual exit of a forked process hangs.
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        if not unfit[0]:
            self.end(os.waitstatus_to_exitcode(status))
        self._not_orphans |= kill_orphans(but=self._not_orphans)

    def _import(self, source: StudySource, cannot_fork: str = "") -> str:
        """Import the study in this process, report the result, and return the reason for which it cannot be forked."""
        # Imported here because it imports NumPy and Keras, which a server that spawns trials does not.
        from sweeper.files.recorder import install
        from sweeper.run.trial.keeping import keep_for_check

        try:
            install()
            keep_for_check(names=False)
            definition = import_study(source)
            settings = definition.settings().to_json()
            code = definition.code().to_json()
        except SweeperError as error:
            trace = error.traceback if isinstance(error, StudyImportError) else ""
            failed = {"type": type(error).__name__, "message": str(error), "trace": trace}
            _report(self.control, event="failed", **failed)
            self.end(0)
        self._definition = definition
        unfit = cannot_fork or _why_not_fork("importing the study")
        _report(
            self.control,
            event="ready",
            settings=settings,
            code=code,
            threads_given=definition.threads is not None,
            directed_by_name=definition.directed_by_name,
            cannot_fork=cannot_fork,
            imported_by_trials="" if cannot_fork else unfit,
        )
        return unfit

    def serve(self) -> None:
        """Fork a trial at each request, and report each trial's end, until the worker is gone."""
        wake_read, wake_write = socket.socketpair()
        for end in (wake_read, wake_write):
            end.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._socket, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wake_read in ready:
                # Several ends may have written before one read.
                with contextlib.suppress(BlockingIOError):
                    wake_read.recv(4096)
                self._reap()
            if self._socket in ready:
                request = received_from(self.control)
                received = [] if request is None else socket.recv_fds(self._socket, 1, 2)[1]
                if request is None or not received:
                    signal.set_wakeup_fd(-1)
                    return
                for received_descriptor in received:
                    # A program that a trial starts must not inherit the trial's pipe and hold it open.
                    os.set_inheritable(received_descriptor, False)
                self._fork(request, received, (wake_read, wake_write, selector))

    def _fork(self, request: dict[str, Any], received: list[int], own: tuple[Any, ...]) -> None:
        descriptor = received[0]
        reports = Connection(received[1])
        # The trial unblocks the signals when it can handle them.
        earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals_to_stop())
        try:
            pid = fork()  # as safe as the fork for the import
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)
            os.close(descriptor)
            _report(reports, error=str(error))
            return
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)
            self._trials[pid] = reports
            os.close(descriptor)
            _report(reports, pid=pid)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # If this process held another trial's pipes open, that trial's worker would not see their end.
            for resource in (*own, reports, *self._trials.values()):
                resource.close()
            self.control.close()
            self._socket.close()
            die_with_parent()
            channel = Channel.on(descriptor)
            try:
                assignment = _ASSIGNMENTS.validate_python(request["assignment"])
                log_to(assignment.log)
                if self._spawns:
                    _become_trial(descriptor, request["assignment"])
            except Exception as error:
                channel.send(failure_before_trial(error))
            else:
                source = assignment.source
                imported = partial(import_study, source) if source else lambda: self._definition
                serve_trial(channel, assignment, imported)
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
            reports = self._trials.pop(pid, None)
            if reports is None:
                continue
            # Once the worker knows of the end, it may start the next attempt, so orphans die first.
            self._not_orphans |= kill_orphans(but=self._trials.keys() | self._not_orphans)
            _report(reports, code=os.waitstatus_to_exitcode(status))
            reports.close()


def _import_everything() -> None:
    with uncollected():
        import_tensorflow()
        import sweeper.run.trial.run  # noqa: F401 - imported once for all trials

        gc.freeze()


def _report(to: Connection, **fields: Any) -> None:
    """Report to the worker, which may be gone: then this process ends with its requests."""
    with contextlib.suppress(OSError):
        to.send_bytes(json.dumps(fields).encode())


def _become_trial(descriptor: int, assignment: dict[str, Any]) -> NoReturn:
    """Reset this process to the state of a new Python, and run one trial."""
    # A pickled study may be larger than a pipe, and no pickle is read from a disk where memory has files.
    in_memory = hasattr(os, "memfd_create")
    order = open(os.memfd_create("order"), "w+b") if in_memory else tempfile.TemporaryFile()  # noqa: PTH123, SIM115
    order.write(json.dumps(assignment).encode())
    order.seek(0)
    for inherited in (descriptor, order.fileno()):
        os.set_inheritable(inherited, True)
    words = [sys.executable, "-P", "-m", "sweeper.run.launch.warm_server", "spawned"]
    os.execv(sys.executable, [*words, str(descriptor), str(order.fileno())])  # noqa: S606 - no shell is meant


def _run_spawned(descriptor: int, order: int) -> NoReturn:
    """Run one trial in this new Python, whose signals to stop are blocked until the trial starts."""
    die_with_parent()
    channel = Channel.on(descriptor)
    try:
        import_tensorflow()
        with os.fdopen(order, "rb") as file:
            assignment = _ASSIGNMENTS.validate_python(json.load(file))
        source = cast("StudySource", assignment.source)
        sys.argv = [source.target]
    except Exception as error:
        channel.send(failure_before_trial(error))
    else:
        serve_trial(channel, assignment, partial(import_study, source))
    # Threads that the trial's code left running must not keep the process alive after its last message.
    os._exit(0)


def _why_not_fork(importing: str = "") -> str:
    """Return the reason for which children could hang after ``importing`` something, or an empty string."""
    # Its handle is None until an op runs, and no public function reads it without starting it.
    from tensorflow.python.eager import context

    if context.context()._context_handle is not None:
        return f"{importing} ran TensorFlow (built a model, or made a tensor)"
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"{importing} started threads ({names})"
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
