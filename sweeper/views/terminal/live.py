"""Progress while a study runs: a table that redraws itself, a notebook's cell, or plain lines.

Jupyter, Colab and everything else with an IPython kernel show what is displayed under an id again
when it is displayed anew. The cell keeps the last state when the run is over.

What happened for good (a trial's end, a resume, a notice) is printed above the table and stays; the
table is cleared when the run ends, and the summary takes its place.
"""

from __future__ import annotations

import contextvars
import io
import os
import sys
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Event,
    Notice,
    RunStopping,
    TrainingStarted,
    TrialVerified,
    VerificationOpened,
)
from sweeper.views.terminal.drawing import draw
from sweeper.views.terminal.lines import LineProgress, Verbosity, event_line, state_text
from sweeper.views.terminal.model import ProgressModel, Snapshot

_OUTCOMES = {
    "complete": "green",
    "pruned": "yellow",
    "interrupted": "yellow",
    "paused": "yellow",
    "failed": "bold red",
    "crashed": "bold red",
    "lost": "bold red",
}
_VERDICTS = {"holds": "green", "unpromised": "yellow", "differs": "bold red"}


REDRAWS = 5
"""A second, by itself."""


class EventLines:
    """Writes a line for each event that is to stay, in the style of its outcome.

    Args:
        verbosity: With "verbose", each epoch and checkpoint has a line.
    """

    def __init__(self, verbosity: Verbosity) -> None:
        self._verbose = verbosity == "verbose"
        self._verifies = False
        self._attempts: dict[int, int] = {}

    def line(self, event: Event) -> Text | None:
        """Return the line for ``event``; None where it has none."""
        if isinstance(event, AttemptStarted):
            self._attempts[event.trial] = event.attempt
        self._verifies = self._verifies or isinstance(event, VerificationOpened)
        style = self._style(event)
        if style is None:
            return None
        line = event_line(event, attempt=self._attempts.get(getattr(event, "trial", -1), 1))
        return None if line is None else Text(line, style=style)

    def _style(self, event: Event) -> str | None:
        match event:
            case AttemptEnded():
                # A replay's own end is no news: its trial's verdict follows.
                ended = self._verifies and event.outcome in ("complete", "pruned")
                return None if ended else _OUTCOMES[event.outcome]
            case TrialVerified():
                return _VERDICTS[event.verdict]
            case Notice():
                return "yellow"
            case TrainingStarted() if event.start_step:
                return "cyan"
            case TrainingStarted() | EpochFinished() if self._verbose:
                return "dim"
            case CheckpointKept() if self._verbose and event.seconds is not None:
                return "dim"
            case _:
                return None


class LiveProgress:
    """A listener that draws a run's table while it lasts. Safe from several threads.

    Args:
        console: The terminal.
        model: What is drawn.
        redraws: How often the table is drawn anew by itself, a second; 0 for never.
        verbosity: With "verbose", each epoch and checkpoint has a line above the table.
    """

    def __init__(
        self,
        console: Console,
        model: ProgressModel,
        redraws: int,
        verbosity: Verbosity = "normal",
    ) -> None:
        self._console = console
        self._model = model
        self._lines = EventLines(verbosity)
        self._live = Live(
            console=console,
            get_renderable=lambda: draw(self._model.snapshot(), console.width, console.height),
            auto_refresh=redraws > 0,
            refresh_per_second=max(redraws, 1),
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        self._model.apply(event)
        line = self._lines.line(event)
        if line is not None:
            self._console.print(line)
        if isinstance(event, RunStopping):
            # Trials may be gone before the table is drawn the next time.
            self._live.refresh()

    def refresh(self) -> None:
        """Draw the table as it is now."""
        self._live.refresh()


REDRAW_SECONDS = 1.0
"""Between two updates of the cell."""

MOST_LINES = 8
"""So many of the latest ends and notices stand below the table."""

WIDTH, HEIGHT = 110, 40
"""Columns and lines of the drawing."""

_STOP = "Interrupting the kernel"
_CELL = '<pre style="overflow-x:auto;white-space:pre;margin:0">{code}</pre>'


class Display(Protocol):
    """Output of a notebook's cell that is updated in place."""

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

    def __exit__(self, *error: object) -> None:
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


class ProgressListener(Protocol):
    """A listener that holds the terminal, or the cell, while the run lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

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
