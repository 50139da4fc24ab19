"""What `before` can name: parts of sweeper taken out of a trial process, for negative controls."""

from __future__ import annotations

from typing import Any


def without_global_generators() -> None:
    """Leave Python's and NumPy's generators out of checkpoints."""
    _without("python_random", "numpy_random")


def without_first_line() -> None:
    """Leave out the walk over the user's objects, and all that is restored where data are opened."""
    _without("user_state", "reopening")


def _without(*names: str) -> None:
    from sweeper.train.loop import loop
    from sweeper.train.state import state

    original = state.default_components

    def shorter(*arguments: Any, **options: Any) -> list[Any]:
        return [c for c in original(*arguments, **options) if c.name not in names]

    loop.default_components = shorter
