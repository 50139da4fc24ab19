"""Check that a model can be written to a path, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from sweeper.errors import UsageError
from sweeper.export.card import card_paths


def check_target(path: Path, *, force: bool) -> None:
    """Check that ``path`` can be written.

    Args:
        path: Where a model is to go.
        force: Whether what is there may be replaced.

    Raises:
        UsageError: Something is there, or no directory to hold it.
    """
    parent = path.parent
    if not parent.is_dir():
        what = "is no directory" if parent.exists() else "does not exist"
        msg = f"{parent}, where {path.name} is to be written, {what}; make it first"
        raise UsageError(msg)
    if force:
        return
    for each in (path, *card_paths(path)):
        if each.exists() or each.is_symlink():
            msg = f"{each} is there already; name another path, or replace it (--force, force=True)"
            raise UsageError(msg)
