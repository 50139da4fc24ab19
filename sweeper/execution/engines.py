"""Where a worker's slots run. joblib places them; what they do is `sweeper.execution.worker`.

A slot returns nothing: results are read from the database, so an engine that loses a return value
loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import joblib

from sweeper.errors import UsageError

__all__ = ["Engine", "LocalEngine", "engine_named"]


class Engine(Protocol):
    """Runs ``slots`` copies of a function side by side, and returns when all have returned."""

    def run(self, slot: Callable[[], None], slots: int) -> None: ...


class LocalEngine:
    """Threads of this process. Each supervises one trial process, so threads cost nothing."""

    def run(self, slot: Callable[[], None], slots: int) -> None:
        with joblib.parallel_config(backend="threading"):
            joblib.Parallel(n_jobs=slots)(joblib.delayed(slot)() for _ in range(slots))


def engine_named(name: str) -> Engine:
    """The engine called ``name``.

    Raises:
        UsageError: There is none of that name, or not yet.
    """
    if name == "local":
        return LocalEngine()
    if name in ("dask", "ray"):
        msg = f"engine {name!r} is not available in this version; use 'local'"
        raise UsageError(msg)
    msg = f"there is no engine {name!r}; use 'local'"
    raise UsageError(msg)
