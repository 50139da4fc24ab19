"""Link of a trial to its worker, and the message that reports a failure.

An exception may come from the user's code: its text may be missing, huge, of many lines, or contain
characters that neither a pipe nor a database can store. TensorFlow's texts contain the reason among
pages of frames and names of nodes. Formatting must never fail, because the trial would then seem to
have crashed.
"""

import contextlib
import errno
import os
import queue
import re
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from sweeper.errors import (
    CheckpointError,
    DefinitionChangedError,
    IndependenceError,
    ParameterError,
    SweeperError,
)
from sweeper.files.recorder import RECORDER
from sweeper.files.uses import uses_to_json
from sweeper.inspection.sources import is_users
from sweeper.replay.reports import line_of_error
from sweeper.run.protocol import messages
from sweeper.run.protocol.channel import Channel, GarbledError, Link
from sweeper.support.installation import missing_package
from sweeper.support.shown import error_text, shown_error

EXIT_WORKER_GONE = 75
"""Exit code of a trial process whose worker has died; only a log may show it."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers of a full disk, an exhausted quota and a read-only file system."""

_MISTAKES = (AttributeError, ImportError, NameError, SyntaxError, TypeError)
"""Errors of code that is wrong for every input, such as a misspelt name."""


_LONGEST_LINE = 2_000
_LONGEST_TEXT = 100_000
"""Maximum number of characters of a line and of a traceback; the middle of a longer one is left out."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TENSORFLOW = re.compile(r"\{\{(function_)?node |\[Op:|^Graph execution error:")
_NODES = re.compile(
    r"\{\{function_node [^}]*\}\}\s*|\[\[\{\{node [^}]*\}\}\]\]|\[Op:[^\]]*\]( name: ?\S*)?"
)
_NO_REASON = re.compile(
    r"Graph execution error:$|Detected at node .* defined at|Traceback \(most recent|"
    r"<stack traces unavailable>"
)


class ChannelLink(Link):
    """The trial's end of the channel; it ends the process if the worker has died.

    ``asked`` is whether the trial has requested a parameter or started to train. With ``ends_early``, a
    request to stop ends the process at once while it has trained no step, since there is nothing to save.
    """

    def __init__(self, channel: Channel, *, ends_early: bool = False) -> None:
        self.asked = False
        self._ends_early = ends_early
        self._step = 0
        # Held while a step is reported, so that it is not lost to an end that was decided before it.
        self._ending = threading.Lock()
        self._channel = channel
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[messages.Answered] = queue.SimpleQueue()
        self._stop = threading.Event()
        threading.Thread(target=self._listen, name="sweeper-link", daemon=True).start()

    def send(self, message: messages.Message) -> None:
        self.asked = self.asked or isinstance(message, messages.Suggest | messages.Started)
        if isinstance(message, messages.Started | messages.LastMessage):
            self.report_files(ended=not isinstance(message, messages.Started))
        if isinstance(message, messages.StepsReached | messages.LastMessage):
            with self._ending:
                self._ends_early = False
        elif isinstance(message, messages.CheckpointCommitted):
            self._step = message.step
        try:
            self._channel.send(message)
        except OSError:
            exit_because_worker_died()

    def report_files(self, *, ended: bool = False) -> None:
        """Report the files that the trial has used so far, if it used any outside of its directory."""
        if uses := RECORDER.uses(ended=ended):
            cut = {} if RECORDER.before.complete else {"cut": True}
            self.send(messages.FilesUsed({**uses_to_json(uses), **cut}, ended))

    def ask(self, question: messages.Question) -> messages.Answered:
        # One request at a time, because an answer does not name its request.
        with self._asking:
            self.send(question)
            return self._answers.get()

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Request a stop at the next step, because of the worker or a signal.

        A handler of signals may have interrupted a thread that holds a lock, so another thread ends the process.
        """
        self._stop.set()
        threading.Thread(target=self._end_early, daemon=True).start()

    def _end_early(self) -> None:
        with self._ending:
            if self._ends_early:
                # A worker that has died needs no message.
                with contextlib.suppress(OSError):
                    self._channel.send(messages.StoppedHere(step=self._step))
                os._exit(0)

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                exit_because_worker_died()
            except GarbledError as error:
                # No request to stop would arrive any more.
                self.send(failure_of(error))
                os._exit(1)
            if isinstance(message, messages.Answered):
                self._answers.put(message)
            elif isinstance(message, messages.Stop):
                self.request_stop()


def failure_before_trial(error: BaseException) -> messages.Failed:
    """Return the message to the worker about an error that was raised before the trial's code ran."""
    text = f"its process could not start: {_text_of(error)}"
    return messages.Failed(
        text, traceback=formatted(error, error.__traceback__), fault="environment"
    )


def failure_of(error: BaseException, *, asked: bool = True) -> messages.Failed:
    """Return the message to the worker about ``error``, which ended a trial.

    ``asked`` is whether the trial had requested a parameter or started to train. If not, every other trial
    would fail in the same way.
    """
    return replace(
        _failure_of(error, asked=asked),
        lasting=isinstance(error, SweeperError) and error.lasting,
        shares=isinstance(error, IndependenceError),
        line=line_of_error(error),
        error_class=type(error).__name__,
        lacks_package=missing_package(error) is not None,
    )


def _failure_of(error: BaseException, *, asked: bool) -> messages.Failed:
    if isinstance(error, CheckpointError):
        return messages.Failed(_text_of(error), fault="environment")
    if isinstance(error, DefinitionChangedError):
        return messages.Failed(printable(str(error)), fault="definition")
    full = _disk_error(error)
    if full is not None:
        text = (
            f"{_text_of(error)} ({full}: free some space or make the disk writable where the "
            "trial writes)"
        )
        return messages.Failed(
            text, traceback=formatted(error, error.__traceback__), fault="environment"
        )
    if isinstance(error, ParameterError):
        return messages.Failed(error_line(error, where=True), of_study=error.of_study or not asked)
    if isinstance(error, SweeperError):
        trace = getattr(error, "traceback", "")
        return messages.Failed(_text_of(error), traceback=printable(trace), of_study=error.of_study)
    text = error_line(error, where=True)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int | None) else error_text(error)
        text = printable(f"the trial's code called sys.exit({code!r})")
    memory = isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError"
    return messages.Failed(
        text,
        traceback=formatted(error, _users_part(error.__traceback__)),
        fault="memory" if memory else "trial",
        of_study=isinstance(error, _MISTAKES)
        and (not asked or getattr(error, "of_study", False)),  # the latter from `build`
    )


def _disk_error(error: BaseException) -> str | None:
    """Return the text of the disk's error that caused ``error``, or None.

    Errors of TensorFlow and HDF5 contain the system's reason only in their text.
    """
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
            return os.strerror(cause.errno)
        if isinstance(cause, OSError) or type(cause).__module__.startswith("tensorflow."):
            for number in _DISK_ERRORS:
                if os.strerror(number) in error_text(cause):
                    return os.strerror(number)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _text_of(error: BaseException) -> str:
    return printable(shown_error(error))


def exit_because_worker_died() -> NoReturn:
    """End this process, because its worker has died."""
    os._exit(EXIT_WORKER_GONE)


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside sweeper; the whole traceback if there is none."""
    package = f"{Path(__file__).parents[2]}{os.sep}"
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(package):
        part = part.tb_next
    return part or trace


def error_line(error: BaseException, *, where: bool) -> str:
    """Return one line: the error's type, its reason, and the user's line that raised it.

    With ``where``, ``(in FUNCTION, FILE:LINE)`` is added, if a line of the user's code is known.
    """
    kind = type(error).__name__
    reason = _reason(printable(error_text(error), _LONGEST_TEXT))
    location = _location(error.__traceback__) if where else None
    missing = missing_package(error)
    advice = "" if missing is None else f"; {missing}"
    line = printable(f"{kind}: {reason}" if reason else kind, _LONGEST_LINE) + advice
    return line if location is None else f"{line} ({printable(location)})"


def formatted(error: BaseException, trace: TracebackType | None) -> str:
    """Return the traceback as Python prints it, starting at ``trace``."""
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except BaseException as other:
        # Formatting notes and chained errors calls the user's code, too.
        lines = [*traceback.format_tb(trace), f"<formatting raised {type(other).__name__}>\n"]
    return printable("".join(lines))


def printable(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return ``text`` with lone surrogates and NULs escaped, which pipes and databases cannot store.

    The middle of a text longer than ``longest`` characters is left out.
    """
    if len(text) > longest:
        half = longest // 2
        omitted = len(text) - 2 * half
        text = f"{text[:half]} [… {omitted} characters left out …] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def _reason(text: str) -> str:
    lines = _COLOURS.sub("", text).splitlines()
    if any(_TENSORFLOW.search(line) for line in lines):
        # Frames are indented; the other lines are the kernel's message.
        unindented = [_NODES.sub("", line).rstrip() for line in lines if not line.startswith("  ")]
        reasons = [
            line.strip() for line in unindented if line.strip() and not _NO_REASON.match(line)
        ]
        lines = list(dict.fromkeys(reasons)) or lines
    return " ".join(" ".join(lines).split())


def _location(trace: TracebackType | None) -> str | None:
    """Return the innermost line of the user's own code, as ``in FUNCTION, FILE:LINE``."""
    location = None
    for frame, line in traceback.walk_tb(trace):
        if is_users(frame.f_code.co_filename):
            name = frame.f_code.co_name
            location = f"in {name}, {Path(frame.f_code.co_filename).name}:{line}"
    return location
