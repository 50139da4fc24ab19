"""Removing what was pinned for an interval, once nobody needs it any more."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

__all__ = ["free_pins"]


def free_pins(directory: str | Path) -> None:
    """Remove the interval's directory, and those around it that are empty then.

    What cannot be removed costs disk, and `sweeper gc` finds it.
    """
    place = Path(directory)
    if place.is_symlink():
        with contextlib.suppress(OSError):
            place.unlink()
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.parent.rmdir()
        place.parent.parent.rmdir()
