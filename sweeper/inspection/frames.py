"""Whose code a frame of a stack runs: the user's, a library's, or this package's."""

from __future__ import annotations

import functools
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)
_PACKAGE = str(Path(__file__).resolve().parents[1])


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether the user wrote ``file``: it is no library's, not Python's, and not of this package."""
    if not file or file.startswith("<"):
        return False
    resolved = str(Path(file).resolve())
    return not resolved.startswith((*_LIBRARIES, _PACKAGE)) and Path(resolved).is_file()


def outward(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """The frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(lines: Iterable[tuple[str, int]]) -> str | None:
    """The first of ``lines``, files and numbers of lines, that is the user's, as ``file:line``."""
    return next((f"{Path(f).name}:{number}" for f, number in lines if is_users(f)), None)
