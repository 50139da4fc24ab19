"""Settings of a study of which only a few matter to a test."""

from sweeper.definition.definition import StudySettings


def plain_settings(**changes):
    """Return settings with defaults for what a definition has to say."""
    values = {
        "name": "small", "objective": "loss", "direction": "minimize", "epochs": 1, "trials": 1,
        "sampler": "random", "grid": None, "pruner": None, "concurrency": 1, "seed": 0,
        "checkpoint_every": "epoch", "keep": {}, "deterministic": True, "threads": 1,
    }  # fmt: skip
    return StudySettings(**{**values, **changes})
