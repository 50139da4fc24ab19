"""The files of Keras's callbacks, for a replay beside a trial that may still be writing them.

A callback's file below the trial's directory is another one already, since a replay has a directory
of its own. One at a fixed path would be cut back and written again under the trial's hands; so the
callback is given a copy. What the user's own code opens is the user's: it is written again, as it
is by every resume.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import keras

_FILE_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (keras.callbacks.CSVLogger, ("filename",)),
    (keras.callbacks.ModelCheckpoint, ("filepath",)),
    (keras.callbacks.TensorBoard, ("log_dir", "_log_write_dir", "_train_dir", "_val_dir")),
)


def redirect_files(callbacks: Sequence[keras.callbacks.Callback], directory: Path) -> None:
    """Have each of Keras's callbacks write below ``directory``.

    Args:
        callbacks: The trial's.
        directory: The replay's own; what lies in it stays as it is.
    """
    for index, callback in enumerate(callbacks):
        for kind, attributes in _FILE_ATTRIBUTES:
            if not isinstance(callback, kind):
                continue
            for attribute in attributes:
                path = getattr(callback, attribute, None)
                if isinstance(path, str | Path):
                    _redirect(callback, attribute, Path(path), directory, index)


def _redirect(
    callback: keras.callbacks.Callback, attribute: str, path: Path, directory: Path, index: int
) -> None:
    if path.absolute().is_relative_to(directory.absolute()):
        return
    own = directory / f".audit-{index}" / path.name
    own.parent.mkdir(parents=True, exist_ok=True)
    for file in (path, path.with_name(f".{path.name}.before")):
        if isinstance(callback, keras.callbacks.CSVLogger) and file.is_file():
            shutil.copyfile(file, own.with_name(file.name))
    setattr(callback, attribute, str(own))
