"""Main function of a trial process, its link to the worker, and the message that reports a failure.

A trial process ends in one of four ways, and the worker can tell them apart: it reports the outcome
and exits 0; its worker is gone, so it ends itself; it is killed; or it dies, and the worker learns
the signal or exit code. The thread that listens to the worker keeps running while TensorFlow works,
because TensorFlow releases Python's lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from sweeper.definition.definition import StudyDefinition
from sweeper.errors import CheckpointError, DefinitionChangedError, ParameterError, SweeperError
from sweeper.run.protocol.channel import Channel, GarbledError
from sweeper.run.protocol.messages import (
    Assignment,
    Failed,
    Judge,
    Judged,
    Message,
    Preparing,
    Started,
    Stop,
    Suggest,
    Suggested,
)
from sweeper.run.signals import release_signals, signals_to_stop
from sweeper.run.trial.devices import configure_tensorflow, limit_memory, show_devices
from sweeper.run.trial.reasons import error_line, error_text, formatted, printable
from sweeper.spec.space import CategoricalChoice, Distribution
from sweeper.support.processes import adopt_orphans
from sweeper.support.tensorflow_start import look_for_gpus

EXIT_WORKER_GONE = 75
"""A trial process's exit code when its worker is gone; nobody is left to read it, but a log is."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""A full disk, a spent quota, a read-only file system."""

_MISTAKES = (AttributeError, ImportError, NameError, SyntaxError, TypeError)
"""Errors of code that is wrong for every input, such as a misspelt name."""


class ChannelLink:
    """The trial's side of the pipe. Ends the process when the other side is gone."""

    def __init__(self, channel: Channel) -> None:
        self.asked = False
        self._channel = channel
        self._answers: queue.SimpleQueue[Suggested] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Judged] = queue.SimpleQueue()
        self._stop = threading.Event()
        threading.Thread(target=self._listen, name="sweeper-link", daemon=True).start()

    def send(self, message: Message) -> None:
        self.asked = self.asked or isinstance(message, Suggest | Started)
        try:
            self._channel.send(message)
        except OSError:
            worker_is_gone()

    def suggest(self, name: str, distribution: Distribution) -> CategoricalChoice:
        self.send(Suggest(name, distribution))
        return self._answers.get().accepted()

    def judge(self, question: Judge) -> Judged:
        self.send(question)
        return self._verdicts.get()

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Request a stop at the next step, because of the worker or a signal."""
        self._stop.set()

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                worker_is_gone()
            except GarbledError as error:
                # No request to stop would arrive any more.
                self.send(failure_of(error))
                os._exit(1)
            if isinstance(message, Suggested):
                self._answers.put(message)
            elif isinstance(message, Judged):
                self._verdicts.put(message)
            elif isinstance(message, Stop):
                self.request_stop()


def serve_trial(
    channel: Channel, assignment: Assignment, load: Callable[[], StudyDefinition]
) -> None:
    """Run one trial in this process, which is the trial's alone, and report how it ended.

    Args:
        channel: To the worker.
        assignment: The trial.
        load: Gives the study's definition. Called when TensorFlow is configured: a study that is
            imported only now may run ops as it is, and after the first op nothing can be set.
    """
    link = ChannelLink(channel)
    adopt_orphans()
    for number in signals_to_stop():
        signal.signal(number, lambda *_: link.request_stop())
    release_signals()
    try:
        show_devices(assignment.devices)
        look_for_gpus()
        limit_memory(assignment.memory_limit)
        configure_tensorflow(threads=assignment.threads, deterministic=assignment.deterministic)
        if assignment.source is not None:
            link.send(Preparing("importing the study"))
        definition = load()
        if assignment.replay is not None and assignment.replay.rehearsal is not None:
            from sweeper.run.trial.rehearsal import rehearse

            rehearse(definition, assignment, assignment.replay.rehearsal, link)
        elif assignment.evaluation is not None:
            from sweeper.run.trial.evaluation import evaluate

            evaluate(definition, assignment, link)
        elif assignment.export is not None:
            from sweeper.run.trial.exporting import export

            export(definition, assignment, link)
        else:
            from sweeper.run.trial.run import run_trial

            run_trial(definition, assignment, link)
    except BaseException as error:
        # Sent first: on a full disk, the log takes nothing more.
        link.send(failure_of(error, asked=link.asked))
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def failure_before_trial(error: BaseException) -> Failed:
    """Return the message to the worker about ``error``, raised before any of the trial's code ran."""
    text = f"its process could not start: {_text_of(error)}"
    return Failed(text, traceback=formatted(error, error.__traceback__), fault="environment")


def failure_of(error: BaseException, *, asked: bool = True) -> Failed:
    """Return the message to the worker about ``error``, which ended a trial.

    Args:
        error: Any exception.
        asked: Whether the trial asked for a parameter before, or began to train: what goes wrong
            before either is the same in every trial.
    """
    if isinstance(error, CheckpointError):
        return Failed(_text_of(error), fault="environment")
    if isinstance(error, DefinitionChangedError):
        return Failed(printable(str(error)), fault="definition")
    full = _disk_error(error)
    if full is not None:
        text = (
            f"{_text_of(error)} ({full}: free some space or make the disk writable where the "
            "trial writes)"
        )
        return Failed(text, traceback=formatted(error, error.__traceback__), fault="environment")
    if isinstance(error, ParameterError):
        return Failed(error_line(error, where=True), of_study=error.of_study or not asked)
    if isinstance(error, SweeperError):
        own = getattr(error, "traceback", "")
        return Failed(_text_of(error), traceback=printable(own), of_study=error.of_study)
    text = error_line(error, where=True)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int | None) else error_text(error)
        text = printable(f"the trial's code called sys.exit({code!r})")
    memory = isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"
    return Failed(
        text,
        traceback=formatted(error, _users_part(error.__traceback__)),
        fault="memory" if memory else "trial",
        of_study=not asked and isinstance(error, _MISTAKES),
    )


def _disk_error(error: BaseException) -> str | None:
    """Return what the disk refuses, if ``error`` comes of that; no other trial could write there either.

    TensorFlow and HDF5 have the system's reason in their text alone.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return os.strerror(cause.errno)
        if isinstance(cause, OSError) or type(cause).__module__.startswith("tensorflow."):
            for number in _DISK_ERRORS:
                if os.strerror(number) in error_text(cause):
                    return os.strerror(number)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _text_of(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error_text(error)}")


def worker_is_gone() -> NoReturn:
    """End this process: nobody is left to report to."""
    os._exit(EXIT_WORKER_GONE)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside sweeper; whole where there is none."""
    own = f"{Path(__file__).parents[2]}{os.sep}"
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(own):
        part = part.tb_next
    return part or trace
