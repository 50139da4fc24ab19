"""The trial process's own side: its link to the worker, its signals, and what it says when it ends.

A trial process ends in one of four ways, and the worker can tell them apart: it says how it went
and exits 0; its worker is gone, so it ends itself; it is killed; or it dies, and the worker learns
the signal or exit code. The thread that listens to the worker keeps running while TensorFlow works,
because TensorFlow releases Python's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from sweeper.definition import StudyDefinition
from sweeper.errors import CheckpointError, SweeperError
from sweeper.execution.channel import (
    Assignment,
    Channel,
    Failed,
    Judge,
    Judged,
    Message,
    Stop,
    Suggest,
    Suggested,
)
from sweeper.execution.devices import configure_tensorflow, limit_memory, show_devices

__all__ = ["EXIT_WORKER_GONE", "ChannelLink", "die_with_parent", "failure_of", "serve_trial"]

EXIT_WORKER_GONE = 75
"""A trial process's exit code when its worker is gone; nobody is left to read it, but a log is."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ChannelLink:
    """The trial's side of the pipe. Ends the process when the other side is gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._answers: queue.SimpleQueue[Suggested] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Judged] = queue.SimpleQueue()
        self._stop = threading.Event()
        threading.Thread(target=self._listen, name="sweeper-link", daemon=True).start()

    def send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except OSError:
            _worker_is_gone()

    def ask(self, question: Suggest) -> Suggested:
        self.send(question)
        return self._answers.get()

    def judge(self, question: Judge) -> Judged:
        self.send(question)
        return self._verdicts.get()

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Stop at the next step: the worker said so, or a signal did."""
        self._stop.set()

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                _worker_is_gone()
            if isinstance(message, Suggested):
                self._answers.put(message)
            elif isinstance(message, Judged):
                self._verdicts.put(message)
            elif isinstance(message, Stop):
                self.request_stop()


def serve_trial(
    channel: Channel, assignment: Assignment, load: Callable[[], StudyDefinition]
) -> None:
    """Run one trial in this process, which is the trial's alone, and say how it went.

    Args:
        channel: To the worker.
        assignment: The trial.
        load: Gives the study's definition. Called when TensorFlow is configured: a study that is
            imported only now may run ops as it is, and after the first op nothing can be set.
    """
    link = ChannelLink(channel)
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: link.request_stop())
    try:
        show_devices(assignment.devices)
        limit_memory(assignment.memory_limit)
        configure_tensorflow(threads=assignment.threads, deterministic=assignment.deterministic)
        definition = load()
        if assignment.rehearsal is not None and assignment.rehearsal.part != "trial":
            from sweeper.execution.rehearsal import rehearse

            rehearse(definition, assignment, link)
        else:
            from sweeper.execution.trial_run import run_trial

            run_trial(definition, assignment, link)
    except BaseException as error:
        traceback.print_exc()
        link.send(failure_of(error))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def failure_of(error: BaseException) -> Failed:
    """What the worker is told of ``error``, which ended a trial."""
    told = _printable(f"{type(error).__name__}: {error}")
    if isinstance(error, CheckpointError):
        return Failed(told, fault="environment")
    if isinstance(error, SweeperError):
        own = getattr(error, "traceback", "")
        return Failed(told, traceback=_printable(own))
    if isinstance(error, SystemExit):
        told = f"the trial's code called sys.exit({error.code!r})"
    trace = _users_part(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, trace))
    memory = isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"
    return Failed(told, traceback=_printable(text), fault="memory" if memory else "trial")


def _printable(text: str) -> str:
    """``text`` as a pipe and every database can carry it: lone surrogates and NULs as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def die_with_parent() -> None:
    """Have Linux kill this process when its parent dies; elsewhere the pipe's end tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Have Linux make this process the parent of what its children leave behind.

    So that whoever kills a trial with all that it started finds a daemon of its making as well.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _worker_is_gone() -> None:
    os._exit(EXIT_WORKER_GONE)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside sweeper; whole where there is none."""
    own = f"{Path(__file__).parent.parent}{os.sep}"
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(own):
        part = part.tb_next
    return part or trace


def main(arguments: list[str]) -> None:
    """Entry of a spawned trial process: ``python -m sweeper.execution.process DESCRIPTOR``."""
    from sweeper.execution.devices import import_tensorflow
    from sweeper.execution.sources import load_source
    from sweeper.training.randomness import IMPORT_SEED, seed_everything

    die_with_parent()
    import_tensorflow()
    channel = Channel.on(int(arguments[0]))
    assignment = channel.receive()
    if not isinstance(assignment, Assignment) or assignment.source is None:
        sys.exit(f"expected an assignment with the study's source, got {assignment!r}")
    source = assignment.source

    def load() -> StudyDefinition:
        seed_everything(IMPORT_SEED)
        return load_source(source)

    serve_trial(channel, assignment, load)
    # What the trial's code leaves running must not keep a process alive that has had its say.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
