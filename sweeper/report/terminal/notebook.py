"""Progress in a notebook's cell: the terminal's drawing, updated in place, not a line an epoch.

Jupyter, Colab and everything else with an IPython kernel show what is displayed under an id again
when it is displayed anew. The cell keeps the last state when the run is over.
"""

from __future__ import annotations

import contextvars
import io
import sys
import threading
import uuid
from collections import deque
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.text import Text

from sweeper.events import Event
from sweeper.report.terminal.drawing import draw
from sweeper.report.terminal.lines import state_text
from sweeper.report.terminal.live import EventLines
from sweeper.report.terminal.model import ProgressModel, Snapshot

REDRAW_SECONDS = 1.0
"""Between two updates of the cell."""

MOST_LINES = 8
"""So many of the latest ends and notices stand below the table."""

WIDTH, HEIGHT = 110, 40
"""Columns and lines of the drawing."""

_STOP = "Interrupting the kernel"
_CELL = '<pre style="overflow-x:auto;white-space:pre;margin:0">{code}</pre>'


class Display(Protocol):
    """Where a notebook shows something, again and again in the same place."""

    def show(self, html: str, text: str) -> None:
        """Show this in place of what was shown before; ``text`` where no HTML can be."""
        ...


class CellDisplay:
    """The output of the cell that is running."""

    def __init__(self) -> None:
        self._id = f"sweeper-{uuid.uuid4().hex}"
        self._shown = False

    def show(self, html: str, text: str) -> None:
        from IPython.display import display

        content = {"text/html": html, "text/plain": text}
        display(content, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


def notebook_display() -> Display | None:
    """Return the running cell's output; None where this process is no notebook's kernel.

    IPython in a terminal has a shell too, and no kernel; there the terminal's own forms are right.
    """
    ipython: Any = sys.modules.get("IPython")
    find: Any = getattr(ipython, "get_ipython", None)
    shell = None if find is None else find()
    return None if getattr(shell, "kernel", None) is None else CellDisplay()


class NotebookProgress:
    """A listener that updates one display. Safe from several threads.

    Args:
        display: Shows it.
        model: What is shown.
    """

    def __init__(self, display: Display, model: ProgressModel) -> None:
        self._display = display
        self._model = model
        self._lines = EventLines("normal")
        self._latest: deque[Text] = deque(maxlen=MOST_LINES)
        self._written = 0
        self._showing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.refresh()
        # The kernel knows by the context which cell is running.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._keep_showing,), name="sweeper-notebook", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.refresh()

    def __call__(self, event: Event) -> None:
        self._model.apply(event)
        with self._showing:
            line = self._lines.line(event)
            if line is not None:
                self._latest.append(line)
                self._written += 1

    def refresh(self) -> None:
        """Show the run as it is now."""
        with self._showing:
            snapshot = self._model.snapshot()
            stop = "" if self._over.is_set() else _STOP
            earlier = self._written - len(self._latest)
            parts = [Text(f"({earlier} earlier lines)", style="dim")] if earlier else []
            shown = Group(draw(snapshot, WIDTH, HEIGHT, stop=stop), *parts, *self._latest)
            self._display.show(_html(shown), _plain(snapshot))

    def _keep_showing(self) -> None:
        while not self._over.wait(REDRAW_SECONDS):
            self.refresh()


def _html(shown: Group) -> str:
    """Return what a terminal would show as HTML, in which whatever a user wrote is text."""
    console = Console(
        file=io.StringIO(),
        width=WIDTH,
        record=True,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
    )
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=_CELL)


def _plain(snapshot: Snapshot) -> str:
    name = "" if snapshot.study is None else snapshot.study.study
    return f"{name}{state_text(snapshot)}" or "opening the study ..."
