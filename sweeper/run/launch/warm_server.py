"""Fork server: a process that has imported TensorFlow, Keras and the study, and has run no op.

Each trial is forked from it, which takes a hundredth of the time of importing TensorFlow. That is safe
only while TensorFlow has run no op: a process that has run one hangs sooner or later if it is forked.
So the study is imported by a child of the process that has imported TensorFlow. If the import ran no
op, the child freezes the garbage collector's objects (a fork then copies fewer pages) and becomes the
server, and its parent waits for it. Otherwise the child exits and its parent becomes the server: each
trial then imports the study in its own process. To save trials time in that case, the libraries at the
top of the study's file are first imported in the same way, by a child. They may be imported once for
all trials, because no other statement of the file precedes them that could change their effect.

The server has one thread, runs no factory, and ends when its worker ends, with all processes that its
trials started. If trials cannot be forked, it imports nothing and starts a new Python for each trial.

The protocol is lines of JSON over one socket. A request to fork carries the trial's end of the channel
as a file descriptor.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import mmap
import os
import pickle
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter

from sweeper.definition.definition import StudyDefinition
from sweeper.errors import StudyImportError, SweeperError
from sweeper.inspection.sources import is_users_source
from sweeper.run.launch.orphans import kill_orphans, start_watcher
from sweeper.run.launch.sources import file_of, import_study
from sweeper.run.protocol.channel import Channel
from sweeper.run.protocol.messages import Assignment, StudySource
from sweeper.run.signals import release_signals, signals_to_stop
from sweeper.run.trial.devices import import_tensorflow, uncollected
from sweeper.run.trial.link import failure_before_trial
from sweeper.run.trial.process import serve_trial
from sweeper.support.processes import adopt_orphans, die_with_parent


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
    """Entry: ``python -m sweeper.run.launch.warm_server DESCRIPTOR DRIVER IMPORTS``."""
    control = socket.socket(fileno=int(arguments[0]))
    watcher = start_watcher(int(arguments[1]), control.close)
    # Handled and not ignored, because trials would inherit that; under nohup, SIGHUP stays ignored.
    for number in signals_to_stop():
        signal.signal(number, lambda *_: None)
    release_signals()
    server = _Server(control, watcher)
    if int(arguments[2]):
        _import_everything()
    request = server.read_line()
    if request is None:
        return
    if request["source"] is not None:
        server.load(StudySource(**request["source"]))
    server.serve()
    server.end(0)


class _Server:
    def __init__(self, control: socket.socket, watcher: int | None = None) -> None:
        self._control = control
        self._not_orphans: set[int] = set() if watcher is None else {watcher}
        self._trials: set[int] = set()
        self._buffer = b""
        self._descriptors: list[int] = []
        self._definition: StudyDefinition | None = None

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
        if self._continue_in_child(lambda: int(bool(self._import(source)))) == 0:
            return
        # The study's import ran TensorFlow, in a child that has exited.
        steps = leading_imports(source)
        while steps:
            unfit = self._continue_in_child(
                partial(execute_all, steps, lambda: not _why_not_fork())
            )
            if unfit == 0:
                return
            steps = steps[: unfit - 1]

    def end(self, code: int) -> NoReturn:
        """End this process and the orphans of its trials; a negative code is minus a signal."""
        kill_orphans(but=self._not_orphans)
        if code < 0:
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    def _continue_in_child(self, prepare: Callable[[], int]) -> int:
        """Fork a child that calls ``prepare``, and continue in the child if it can still be forked.

        Only one process returns: either the child exits, or the parent waits for the child and then
        exits with the same code.

        Args:
            prepare: Called in the child. Returns 0 if the child can be forked; otherwise a number from
                1 to 255 that identifies the reason.

        Returns:
            The result of ``prepare``: 0 in the child, another number in the parent.
        """
        # Shared memory, because user code may end the child with any exit code.
        unfit = mmap.mmap(-1, 1)
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            adopt_orphans()
            self._not_orphans = set()
            code = 1
            try:
                unfit[0] = prepare()
                # Otherwise each trial would flush its copy of the import's output.
                sys.stdout.flush()
                if unfit[0] == 0:
                    gc.collect()
                    gc.freeze()
                    return 0
                code = 0
            except BaseException:
                traceback.print_exc()
            # If TensorFlow has run, the usual exit of a forked process hangs.
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        if unfit[0] == 0:
            self.end(os.waitstatus_to_exitcode(status))
        self._not_orphans |= kill_orphans(but=self._not_orphans)
        return unfit[0]

    def _import(self, source: StudySource, cannot_fork: str = "") -> str:
        """Import the study in this process, and report the result to the worker.

        Returns:
            The reason for which trials cannot be forked from this process; empty if they can.
        """
        # Imported here because it imports NumPy and Keras, which a server that spawns trials does not.
        from sweeper.files.recorder import install

        try:
            install()
            definition = import_study(source)
            settings = definition.settings().to_json()
            code = definition.code().to_json()
        except SweeperError as error:
            trace = error.traceback if isinstance(error, StudyImportError) else ""
            self._tell(event="failed", type=type(error).__name__, message=str(error), trace=trace)
            self.end(0)
        self._definition = definition
        unfit = cannot_fork or _why_not_fork("importing the study")
        self._tell(
            event="ready",
            settings=settings,
            code=code,
            threads_given=definition.threads is not None,
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
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            # A line that was received together with the previous one does not make the socket readable.
            ready = () if b"\n" in self._buffer else selector.select()
            if any(key.fileobj is wake_read for key, _ in ready):
                with contextlib.suppress(BlockingIOError):
                    wake_read.recv(4096)
                self._reap()
            if not ready or any(key.fileobj is self._control for key, _ in ready):
                request = self.read_line()
                if request is None:
                    return
                self._fork(request, (wake_read, wake_write, selector))

    def _fork(self, request: dict[str, Any], own: tuple[Any, ...]) -> None:
        descriptor = self._descriptors.pop(0)
        # The trial unblocks the signals when it can handle them.
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
            # If this process held another trial's pipe open, that trial's worker would not see its end.
            for other in self._descriptors:
                os.close(other)
            self._control.close()
            die_with_parent()
            channel = Channel.on(descriptor)
            try:
                assignment = _ASSIGNMENTS.validate_python(request["assignment"])
                log_to(assignment.log)
                definition, source = self._definition, assignment.source
                if definition is not None:
                    load = partial(_given, definition)
                elif source is not None:
                    load = partial(import_study, source)
                else:
                    _become_trial(descriptor)
            except Exception as error:
                channel.send(failure_before_trial(error))
            else:
                serve_trial(channel, assignment, load)
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
            # Once the worker knows of the end, it may begin the next attempt, so orphans die first.
            self._not_orphans |= kill_orphans(but=self._trials | self._not_orphans)
            self._tell(event="exited", pid=pid, code=os.waitstatus_to_exitcode(status))

    def read_line(self) -> dict[str, Any] | None:
        """Return the next request, or None if the worker is gone; queue the received descriptors."""
        while b"\n" not in self._buffer:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 16)
            except ConnectionError:
                return None
            for descriptor in descriptors:
                # A program that a trial starts must not inherit the trial's pipe and hold it open.
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
        import sweeper.run.trial.run  # noqa: F401 - imported once for all trials
        from sweeper.inspection.code import read_keras

        read_keras()
        gc.freeze()


def _given(definition: StudyDefinition) -> StudyDefinition:
    return definition


def _become_trial(descriptor: int) -> NoReturn:
    """Reset this process to the state of a new Python, and run one trial."""
    os.set_inheritable(descriptor, True)
    words = [sys.executable, "-P", "-m", "sweeper.run.launch.spawned_trial", str(descriptor)]
    os.execv(sys.executable, words)  # noqa: S606 - no shell is meant


def _why_not_fork(importing: str = "") -> str:
    """Return the reason for which children of this process could hang, or an empty string.

    Args:
        importing: What has been imported, as the subject of the reason.
    """
    from tensorflow.python.eager import context

    if context.context()._context_handle is not None:
        return f"{importing} ran TensorFlow (built a model, or made a tensor)"
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        return f"{importing} started threads ({names})"
    return ""


_MOST_IMPORTS = 255
"""Maximum number of leading imports, whose numbers must fit into a byte."""


def leading_imports(source: StudySource) -> Sequence[ast.stmt]:
    """Return the statements at the top of the study's file that import libraries.

    Statements that set environment variables of Keras or TensorFlow are returned, too. The first
    statement that does anything else, or imports one of the user's modules, ends the sequence.
    """
    file = file_of(source)
    try:
        body = [] if file is None else ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: list[ast.stmt] = []
    for step in body[:_MOST_IMPORTS]:
        is_text = isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
        if not (is_text or _sets_keras(step) or _imports_libraries(step, str(file))):
            break
        found.append(step)
    return found


def execute_all(steps: Sequence[ast.stmt], fit: Callable[[], bool]) -> int:
    """Execute `leading_imports` as far as they may run before the study is imported.

    Args:
        steps: The statements.
        fit: Returns whether this process can be forked.

    Returns:
        The number, counted from 1, of the first statement that failed, made the process unfit to fork,
        or drew random numbers (the study would then draw different ones); 0 if there is none.
    """
    from sweeper.train.randomness.seeds import IMPORT_SEED, seed_everything

    seed_everything(IMPORT_SEED)
    undrawn = _random_state()
    for number, step in enumerate(steps, 1):
        names = {"os": os, "__name__": __name__}
        try:
            exec(compile(ast.Module([step], []), "<imports of the study>", "exec"), names)  # noqa: S102
        except Exception:
            return number
        if not fit() or _random_state() != undrawn:
            return number
    return 0


def _random_state() -> bytes:
    import numpy as np

    return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002 - the global one


def _sets_keras(step: ast.stmt) -> bool:
    """Return whether a statement sets an environment variable of Keras or TensorFlow."""
    match step:
        case ast.Assign(
            targets=[
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id="os"), attr="environ"),
                    slice=ast.Constant(value=str(name)),
                )
            ],
            value=ast.Constant(value=str()),
        ):
            return name.startswith(("KERAS_", "TF_"))
        case _:
            return False


def _imports_libraries(step: ast.stmt, file: str) -> bool:
    match step:
        case ast.Import(names=names):
            return all(_is_library(name.name, file) for name in names)
        case ast.ImportFrom(module=str(module), level=0):
            return _is_library(module, file)
        case _:
            return False


def _is_library(module: str, file: str) -> bool:
    """Return whether ``import module`` in ``file`` finds a library, without importing it."""
    top = module.partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return True
    spec = PathFinder.find_spec(top, [str(Path(file).parent), *sys.path])
    return spec is not None and spec.origin is not None and not is_users_source(spec.origin)


if __name__ == "__main__":
    main(sys.argv[1:])
