"""Setting aside of files that one trial created, before the next one begins.

Files that were there before are the user's, and stay where they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_DESCRIBE = frozenset({"dataset_spec.pb", "saved_model.pb", "snapshot.metadata"})
"""Names of files that describe the directory which contains them."""


def set_aside(created: Iterable[str], directory: Path) -> None:
    """Move files that a trial created into a directory.

    Args:
        created: Their paths; those that do not exist are passed over.
        directory: Created if necessary.

    Raises:
        OSError: A file cannot be moved.
    """
    there = [part for path in sorted(created) for part in _parts(Path(path)) if part.exists()]
    for number, path in enumerate(there):
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.move(path, directory / f"{number}-{path.name}")


def _parts(file: Path) -> list[Path]:
    """Return a file with the files or the directory that belong to it."""
    if file.name in _DESCRIBE:
        return [file.parent]
    if file.suffix == ".index":
        return [
            file,
            *file.parent.glob(f"{file.stem}.data-*"),
            *file.parent.glob(f"{file.stem}_*.lockfile"),
        ]
    return [file]
