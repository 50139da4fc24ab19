"""The environment of the processes that run user code: one hash seed, and no credentials.

What lets a worker into the database and the cluster is of no use to a trial, which knows neither;
its code, and every library that it loads, would only be able to print it or send it away. Keys of
object stores stay, because the trial's own process writes its checkpoints there.
"""

from __future__ import annotations

import os
import re

from sweeper.execution.launch.hash_seed import HASH_SEED

_CREDENTIALS = re.compile(
    r"SWEEPER_STORAGE|SWEEPER_ENGINE_ADDRESS"
    r"|PG[A-Z]+"  # libpq's: PGPASSWORD, PGPASSFILE, PGHOST, …; all of them, none is a trial's
    r"|RAY_AUTH_\w+|RAY_ADDRESS|RAY_REDIS_\w+"
    r"|DASK_(?:SCHEDULER_ADDRESS|GATEWAY__\w+|DISTRIBUTED__COMM__TLS__\w+|PARENT_CONFIG"
    r"|INTERNAL_INHERIT_CONFIG)",
    re.IGNORECASE,
)


def is_credential(variable: str) -> bool:
    """Whether an environment variable of that name opens the database or the cluster."""
    return _CREDENTIALS.fullmatch(variable) is not None


def trial_environment() -> dict[str, str]:
    """The environment for a Python that runs trials: this one's, without what opens doors."""
    kept = {name: value for name, value in os.environ.items() if not is_credential(name)}
    return {**kept, **HASH_SEED}
