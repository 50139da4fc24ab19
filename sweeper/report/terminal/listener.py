"""Which form progress takes: a notebook's cell, a table that redraws itself, or plain lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console

from sweeper.events import Event
from sweeper.report.terminal.lines import LineProgress, Verbosity
from sweeper.report.terminal.live import REDRAWS, LiveProgress
from sweeper.report.terminal.model import ProgressModel
from sweeper.report.terminal.notebook import NotebookProgress, notebook_display


class ProgressListener(Protocol):
    """A listener that holds the terminal, or the cell, while the run lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def __call__(self, event: Event) -> None: ...


def progress_listener(stream: TextIO, verbosity: Verbosity = "normal") -> ProgressListener:
    """Return the live table where ``stream`` can redraw, and plain lines elsewhere.

    Args:
        stream: Where progress goes, unless this is a notebook's process.
        verbosity: How much is said; with "quiet", nothing is drawn.
    """
    if verbosity == "quiet":
        return LineProgress(stream, verbosity)
    display = notebook_display()
    if display is not None:
        return NotebookProgress(display, ProgressModel())
    if can_redraw(stream, os.environ):
        return LiveProgress(Console(file=stream), ProgressModel(), REDRAWS, verbosity)
    return LineProgress(stream, verbosity)


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether ``stream`` is a terminal that redraws, and its user did not ask for plain text.

    ``CI`` (unless "false" or "0"), a ``NO_COLOR`` that is not empty and ``TERM=dumb`` ask for it.
    """
    if environment.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()
