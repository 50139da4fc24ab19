"""Retries of calls after temporary faults, and parallel calls in threads.

Pauses between retries grow, and are drawn from the system's entropy. Python's generator is part of
a trial's exact state, and uploads of checkpoints run in the trial's process, so a draw from it
after a network fault would change the trial's result. A generator of this module would be equal in
all forked trials.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")

_JITTER = random.SystemRandom()


def retrying(
    call: Callable[[], T],
    may_pass: Callable[[BaseException], bool],
    *,
    patience: float,
    first_pause: float,
    longest_pause: float,
) -> T:
    """Return the result of ``call``, or raise the error of its last try.

    An error that ``may_pass`` is followed by another try, if that starts within ``patience`` seconds from now.
    Pauses double from ``first_pause`` to ``longest_pause`` seconds, plus or minus half.
    """
    deadline = time.monotonic() + patience
    pause = first_pause
    while True:
        try:
            return call()
        # Of every kind, because `may_pass` alone decides which errors are temporary.
        except BaseException as error:
            length = pause * _JITTER.uniform(0.5, 1.5)
            if not may_pass(error) or time.monotonic() + length >= deadline:
                raise
        time.sleep(length)
        pause = min(2 * pause, longest_pause)


_WAKES_EVERY = 0.2
"""Seconds after which a waiting main thread handles its signals, at the latest."""


def run_side_by_side(
    work: Sequence[Callable[[], T]], slots: int, stopping: threading.Event
) -> tuple[T, ...]:
    """Run all pieces of work in threads, at most ``slots`` at once, and return their results in order.

    When one raises or this thread is interrupted, ``stopping`` is set, which running work must check. Work that
    has not started then is skipped.

    Raises:
        BaseException: The error of the first failed piece, in their order.
    """
    with ThreadPoolExecutor(max(1, min(slots, len(work)))) as pool:
        futures = [pool.submit(task) for task in work]
        try:
            wait_for_all(futures)
        finally:
            if not all(future.done() for future in futures):
                stopping.set()
                pool.shutdown(cancel_futures=True)
        for future in futures:
            if future.done() and not future.cancelled() and future.exception() is not None:
                future.result()
        return tuple(future.result() for future in futures)


def wait_for_all(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are finished, or one has raised.

    Python handles signals only in the main thread. If the system delivers a signal to another
    thread, a waiting main thread does not wake, so the wait has a timeout.
    """
    while True:
        finished, waiting = wait(futures, timeout=_WAKES_EVERY, return_when=FIRST_EXCEPTION)
        if not waiting or any(future.exception() is not None for future in finished):
            return
