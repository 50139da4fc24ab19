"""Calls that are made again while what failed may pass: after growing pauses, for so long at most.

The pauses are drawn from the system. A trial's Python generator is part of its exact state, and what
uploads its checkpoints runs in its process: a draw from it after a network fault would change the
trial's result. Nor has this module a generator of its own: trials are forked, and would all pause alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

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
