"""A project's own module beside the study file: settings and counters that its code changes."""

import numpy as np

STEP = 0
RNG = np.random.default_rng(8)
SETTINGS = {"rate": 0.1, "decay": 0.97}


class Registry:
    """Keeps what was seen, for the whole project."""

    total = 0.0
    seen = []  # noqa: RUF012 - a class attribute on purpose


def next_rate():
    """The next rate of the project's schedule."""
    global STEP
    STEP += 1
    SETTINGS["rate"] *= SETTINGS["decay"]
    return SETTINGS["rate"] + 0.001 * STEP
