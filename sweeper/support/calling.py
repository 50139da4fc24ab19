"""Calls made again while what failed may pass, and calls made side by side in threads.

A repeated call's pauses grow. They are drawn from the system: a trial's Python generator is part of its
exact state, and what uploads its checkpoints runs in its process: a draw from it after a network fault
would change the trial's result. Nor has this module a generator of its own: trials are forked, and would
all pause alike.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState


T = TypeVar("T")

_JITTER = random.SystemRandom()
_MOST_DOUBLINGS = 30


def retrying(
    call: Callable[[], T],
    may_pass: Callable[[BaseException], bool],
    *,
    patience: float,
    first_pause: float,
    longest_pause: float,
) -> T:
    """Return what ``call`` returns, or raise what its last try raised.

    Args:
        call: What to do; anything that it raises may be raised again by the next try.
        may_pass: Whether another try may do better, after this error.
        patience: Seconds from now within which a try may begin; 0 for a single one.
        first_pause: Seconds before the second try, give or take half; each later pause is twice
            the one before.
        longest_pause: Seconds that a pause has at most, give or take half.
    """
    from tenacity import Retrying, retry_if_exception, stop_before_delay

    def pause(state: RetryCallState) -> float:
        doubled: float = first_pause * 2.0 ** min(state.attempt_number - 1, _MOST_DOUBLINGS)
        return min(doubled, longest_pause) * _JITTER.uniform(0.5, 1.5)

    tries = Retrying(
        retry=retry_if_exception(may_pass),
        stop=stop_before_delay(patience),
        wait=pause,
        reraise=True,
    )
    return tries(call)


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
