"""Holders of files that are open for writing only.

A script that runs again opens its log with mode "w", which empties the file. A resumed training writes what the
checkpoint has back into it, so that the log ends as that of a training that nobody stopped. A file that is open for
appending keeps its content, to which others may have added: nothing of it is undone.
"""

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.train import codec
from sweeper.train.userstate.holders import Value

MOST_WRITTEN = 16 << 20
"""Size in bytes above which a file's content is not saved: each kept checkpoint has a copy."""

_LARGE = f"a file with more than {MOST_WRITTEN >> 20} MiB that training writes"
_APPEND = "open it for appending (mode 'a')"


def mode_of(file: object) -> str | None:
    """Return ``"write"`` or ``"append"`` for an open file that is only written; None for other objects."""
    raw = _raw_of(file)
    if raw is None or raw.closed or raw.readable() or _is_of_process(file):
        return None
    # One that was given as a descriptor, moved or deleted has no path by which it is found again.
    if not isinstance(raw.name, str | os.PathLike) or not _is_at(raw, Path(raw.name)):
        return None
    return "append" if raw.mode.startswith("a") else "write"


def _raw_of(file: object) -> io.FileIO | None:
    """Return what an object of ``open`` writes to; None for another class, which may do more than this one."""
    if type(file) is io.TextIOWrapper:
        # Its buffer is gone after `detach`.
        file = None if file.closed else file.buffer
    if type(file) is io.BufferedWriter:
        file = None if file.closed else file.raw
    return file if type(file) is io.FileIO else None


def _is_of_process(file: object) -> bool:
    return file in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _is_at(raw: io.FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(raw.fileno()), path.stat())
    except OSError:
        return False


class AppendedFile(Value):
    """A file that is open for appending: what is before a checkpoint is on the disk, and no more is restored."""

    __slots__ = ()

    def token(self) -> Any:
        if not self.obj.closed:
            # Python has some of it in memory, which a kill would lose for ever.
            self.obj.flush()
        return None


class WrittenFile(Value):
    """A file that is open for writing only and was empty when it was opened."""

    __slots__ = ("copy", "file", "raw")

    def __init__(self, obj: Any, path: str) -> None:
        super().__init__(obj, path)
        raw: Any = _raw_of(obj)
        self.raw = raw
        # The directory may be another one when the file has been closed.
        self.file = Path(raw.name).absolute()

    def token(self) -> Any:
        content = self._content()
        position = None if self.obj.closed else self._position()
        # A line may have been written over another one of the same length.
        return position, None if content is None else codec.digest_of(content)

    def begin(self) -> None:
        super().begin()
        self.copy = self._content()

    def reset(self) -> None:
        if self.copy is None:
            raise codec.UnplaceableError(_LARGE)
        self._write(self.copy, self.initial[0])

    def capture(self, tensors: codec.Tensors, key: str) -> codec.Json:
        content = self._content()
        if content is None:
            raise codec.NotPlainError(key, self.obj, _LARGE, _APPEND)
        position = None if self.obj.closed else self._position()
        return {"content": codec.put_array(content, tensors, key), "position": position}

    def restore(self, saved: codec.Json, tensors: Mapping[str, Any]) -> None:
        self._write(codec.take_array(saved["content"], tensors), saved["position"])

    def _position(self) -> int:
        """Return the position in bytes of all that has been written; a text file's own may be none in bytes."""
        return int(self.raw.tell())

    def _content(self) -> Any:
        """Return the bytes of the file, also of one that was closed; None for too many."""
        if not self.obj.closed:
            self.obj.flush()
        try:
            if self.file.stat().st_size > MOST_WRITTEN:
                return None
            return np.frombuffer(self.file.read_bytes(), np.uint8)
        except FileNotFoundError:
            # A file that was closed may have been moved.
            return np.zeros(0, np.uint8)

    def _write(self, content: Any, position: int | None) -> None:
        """Write ``content`` in place of the present one; close the file if ``position`` is None."""
        if self.obj.closed:
            raise codec.UnplaceableError("it is a file that is closed now")
        # What is in its buffer would be written behind the content.
        self.obj.flush()
        self.raw.seek(0)
        self.raw.truncate()
        view = memoryview(content.tobytes())
        while view:
            view = view[self.raw.write(view) or 0 :]
        # Through the wrappers, which know their own position, and whether a mark of the byte order is due.
        self.obj.seek(self.raw.tell() if position is None else position)
        if position is None:
            self.obj.close()
