"""The files of Keras's CSVLogger, cut back so that no row is in them twice.

A row is written when an epoch ends, and the next checkpoint may come later, or never. So an attempt
that goes on from a checkpoint cuts the file back to its size there, and one that begins anew after
a lost attempt cuts it back to its size before the first: that size is kept in a small file beside
it from before the first row is written until the training ends. Without it, ``append=True`` could
not tell the rows of a lost attempt from those that the user had.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import keras

from sweeper.errors import RestoreError


def size_of(logger: keras.callbacks.CSVLogger) -> int:
    """Bytes in the logger's file; 0 where there is none."""
    file = Path(logger.filename)
    return file.stat().st_size if file.exists() else 0


def remember_start(logger: keras.callbacks.CSVLogger) -> None:
    """A training begins anew: drop the rows of attempts that were lost before it."""
    if not logger.append:
        return
    note = _note(logger)
    size = size_of(logger)
    if note.exists():
        began = int(json.loads(note.read_text())["bytes"])
        if began <= size:
            _truncate(Path(logger.filename), began)
            return
    note.parent.mkdir(parents=True, exist_ok=True)
    temporary = note.with_name(f"{note.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"bytes": size}))
    temporary.replace(note)


def forget_start(logger: keras.callbacks.CSVLogger) -> None:
    """The training has ended: its rows stay, whatever is appended later."""
    _note(logger).unlink(missing_ok=True)


def cut_back(logger: keras.callbacks.CSVLogger, size: int) -> None:
    """Cut the file back to ``size`` bytes, and have the logger append to it.

    Raises:
        RestoreError: The file is shorter than that.
    """
    file = Path(logger.filename)
    now = size_of(logger)
    if now < size:
        msg = (
            f"CSVLogger's file {file} has {now} bytes, and had {size} at the checkpoint: rows are "
            "missing; bring the file back, or retry the trial from its start"
        )
        raise RestoreError(msg)
    _truncate(file, size)
    logger.append = True


def _truncate(file: Path, size: int) -> None:
    if size == 0:
        file.unlink(missing_ok=True)
        return
    with file.open("r+b") as stream:
        stream.truncate(size)


def _note(logger: keras.callbacks.CSVLogger) -> Path:
    file = Path(logger.filename)
    return file.with_name(f".{file.name}.before")
