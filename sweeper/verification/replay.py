"""At which steps a verification kills the replay of a trial, to see it resumed."""

from __future__ import annotations

import random

_LEAST_STEPS_TO_KILL = 3
STOPPED = "the verification was stopped; trials whose verdict was known have it"


def where_to_kill(seed: int, number: int, steps: int) -> tuple[int, int] | None:
    """The steps after which trial ``number`` takes one more checkpoint, and is killed.

    Both are drawn from ``seed``, so that the same one gives the same test again; the checkpoint
    makes sure that there is something to resume from, mostly in the middle of an epoch.

    Args:
        seed: Any whole number.
        number: The trial's.
        steps: How many it has; None is returned where it is too short.
    """
    if steps < _LEAST_STEPS_TO_KILL:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return drawing.randrange(1, die), die
