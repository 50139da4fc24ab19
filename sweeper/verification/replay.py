"""At which steps a verification kills the replay of a trial, to see it resumed."""

from __future__ import annotations

import random

from sweeper.execution.replays import Kill

_LEAST_STEPS_TO_KILL = 3
STOPPED = "the verification was stopped; trials whose verdict was known have it"


def where_to_kill(seed: int, number: int, steps: int, start: int = 0) -> Kill | None:
    """Return where the replay of trial ``number`` is killed; None where the trial is too short.

    Its steps are drawn from ``seed``, so that the same one gives the same test again; the checkpoint
    makes sure that there is something to resume from, mostly in the middle of an epoch.

    Args:
        seed: Any whole number.
        number: The trial's.
        steps: The step at its end.
        start: The step that it begins at.
    """
    steps -= start
    if steps < _LEAST_STEPS_TO_KILL:
        return None
    drawing = random.Random(f"{seed}:{number}")  # noqa: S311 - no secret
    die = drawing.randrange(2, steps)
    return Kill(start + drawing.randrange(1, die), start + die)
