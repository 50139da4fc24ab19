"""Signals that stop a run, and their effects on its trials."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Literal

from sweeper.errors import Interrupted
from sweeper.records.events import Listener, RunStopping


def hangup() -> tuple[signal.Signals, ...]:
    """Return SIGHUP, which a closed terminal sends, unless it is ignored, as under ``nohup``."""
    number = getattr(signal, "SIGHUP", None)
    return () if number is None or signal.getsignal(number) is signal.SIG_IGN else (number,)


def signals_to_stop() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a process of this run after a checkpoint."""
    return (signal.SIGINT, signal.SIGTERM, *hangup())


class StopRequests:
    """Requests to stop that this process has received; a SIGTERM within a second of another is the same one.

    ``timeout`` of GNU and some batch systems send it to the process and to the process's group.
    """

    def __init__(self) -> None:
        self._received = False
        self._terminated = -math.inf

    def insists(self, number: int) -> bool | None:
        """Return whether a signal is a further request; None if it repeats one. SIGHUP never is one."""
        is_further = self._received
        self._received = True
        if number == signal.SIGTERM:
            previous = self._terminated
            self._terminated = time.monotonic()
            if self._terminated - previous < 1.0:
                return None
        if is_further and number not in (signal.SIGINT, signal.SIGTERM):
            return None
        return is_further


@contextmanager
def signals_held() -> Iterator[None]:
    """Context manager that blocks signals to stop while a process is started.

    The process inherits the blocked signals and loses none until it calls `release_signals`.
    """
    earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals_to_stop())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)


def release_signals() -> None:
    """Unblock the signals to stop, and handle pending ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals_to_stop())


def early_termination() -> AbstractContextManager[None]:
    """Return a context manager in which SIGTERM and SIGHUP end the run like Ctrl-C, while no trial runs."""
    message = "asked to stop ({}) while no trial was running"
    return interrupting(message, signal.SIGTERM, *hangup())


@contextmanager
def stop_signals(
    request: Callable[[Literal["drain", "kill"]], None],
    listener: Listener,
    grace: float | None = None,
) -> Iterator[None]:
    """Context manager for SIGINT, SIGTERM and SIGHUP: the first stops the trials, the second kills them.

    SIGHUP never counts as the second, because a closed terminal and its shell both send it; see
    `StopRequests` for SIGTERM.

    Args:
        request: Stops the trials: "drain" after a checkpoint, or "kill".
        listener: Receives an event for each signal.
        grace: Seconds after the first SIGTERM or SIGHUP after which the trials are killed without a
            second signal; None for no limit.
    """
    requests = StopRequests()
    over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        insists = requests.insists(number)
        if insists is None:
            return
        text = (
            "stopping: every trial finishes its step and writes a checkpoint; a second signal kills"
        )
        if insists:
            text = "killing the trials; each resumes from its newest checkpoint"
        # The main thread may hold a lock that these functions need, so other threads call them.
        _apart(lambda: request("kill" if insists else "drain"))
        _apart(lambda: listener(RunStopping(text, insists)))
        if grace is not None and number != signal.SIGINT and not insists:
            _apart(lambda: kill_after_grace(grace, over, request, listener))

    with handled(signals_to_stop(), stop):
        try:
            yield
        finally:
            over.set()


def kill_after_grace(
    seconds: float,
    over: threading.Event,
    request: Callable[[Literal["kill"]], None],
    listener: Listener,
) -> None:
    """Kill the trials, which were requested to stop, after ``seconds``, unless the run is ``over`` before."""
    if not over.wait(seconds):
        listener(RunStopping(f"the {seconds:g} s of grace are over: killing the trials", True))
        request("kill")


@contextmanager
def interrupting(message: str, *numbers: signal.Signals) -> Iterator[None]:
    """Context manager in which signals raise `Interrupted` in the main thread: by default SIGINT and SIGTERM.

    ``{}`` in the message is replaced by the signal's name.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(message.format(signal.Signals(number).name))

    with handled(numbers or (signal.SIGINT, signal.SIGTERM), stop):
        yield


@contextmanager
def handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Context manager in which ``handler`` handles the signals ``numbers``, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    earlier_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in earlier_handlers.items():
            signal.signal(number, previous)


def _apart(act: Callable[[], None]) -> None:
    threading.Thread(target=act, daemon=True).start()
