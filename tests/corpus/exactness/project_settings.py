"""A project's own module beside the study file: settings and a counter that its code changes."""

STEP = 0
SETTINGS = {"rate": 0.1, "decay": 0.97}


def next_rate():
    """The next rate of the project's schedule."""
    global STEP
    STEP += 1
    SETTINGS["rate"] *= SETTINGS["decay"]
    return SETTINGS["rate"] + 0.001 * STEP
