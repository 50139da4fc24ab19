"""Several pieces of work side by side in threads, where the first error stops them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Result = TypeVar("Result")

_WAKES_EVERY = 0.2
"""Seconds."""


def run_side_by_side(
    work: Sequence[Callable[[], Result]], slots: int, stopping: threading.Event
) -> tuple[Result, ...]:
    """Return what each piece of work returns, in their order.

    Args:
        work: At least one.
        slots: How many run at once, at most.
        stopping: Set where one raises or this thread is interrupted; what runs must look at it. What
            has not begun by then does not begin.

    Raises:
        BaseException: What the first piece, in their order, raised.
    """
    with ThreadPoolExecutor(max(1, min(slots, len(work)))) as pool:
        futures = [pool.submit(each) for each in work]
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
    """Wait until all are done, or one has raised.

    Python handles a signal in the main thread alone, and the system may hand it to another one,
    which wakes no lock that the main thread waits for. So it wakes by itself now and then.
    """
    while True:
        done, waiting = wait(futures, timeout=_WAKES_EVERY, return_when=FIRST_EXCEPTION)
        if not waiting or any(each.exception() is not None for each in done):
            return
