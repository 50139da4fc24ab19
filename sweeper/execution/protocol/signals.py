"""The signals that ask a process of a run to stop, and from when on it takes them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def hangup() -> tuple[signal.Signals, ...]:
    """SIGHUP, which a closed terminal sends; nothing where it is ignored, as under ``nohup``."""
    number = getattr(signal, "SIGHUP", None)
    return () if number is None or signal.getsignal(number) is signal.SIG_IGN else (number,)


def signals_to_stop() -> tuple[signal.Signals, ...]:
    """The signals that ask a process of this run to stop in order."""
    return (signal.SIGINT, signal.SIGTERM, *hangup())


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back signals to stop, for a process that is started meanwhile.

    It begins with them held back, and misses none that comes before it can take them:
    see `release_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals_to_stop())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Take the signals to stop from now on, and those that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals_to_stop())
