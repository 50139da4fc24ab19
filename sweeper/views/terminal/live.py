"""Live progress of a run: a table on a terminal, or the output of a notebook's cell.

Jupyter, Colab and all other front ends with an IPython kernel replace an output when its display id
is displayed again. The cell keeps the last state after the run.

Events (a trial's end, a resume, a notice) are printed permanently above the table; the table is
cleared when the run ends, and replaced by the summary.
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
"""Redraws a second without events."""


class EventLines:
    """Formatter of a permanent line for each event, in the style of its outcome.

    With "verbose", each epoch and checkpoint has a line.
    """

    def __init__(self, verbosity: Verbosity) -> None:
        self._verbose = verbosity == "verbose"
        self._verifies = False
        self._attempts: dict[int, int] = {}

    def line(self, event: Event) -> Text | None:
        """Return the line for ``event``; None if it has none."""
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
                # The end of a replay is not reported, because the trial's verdict follows.
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
    """A listener that draws a table during a run; safe for several threads.

    Args:
        console: The terminal.
        model: The model of the run.
        redraws: Redraws a second without events; 0 for none.
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
        """Redraw the table."""
        self._live.refresh()


REDRAW_SECONDS = 1.0
"""Seconds between two updates of the cell."""

MOST_LINES = 8
"""Number of the latest ends and notices below the table."""

WIDTH, HEIGHT = 110, 40
"""Columns and lines of the drawing."""

_STOP = "Interrupting the kernel"
_CELL = '<pre style="overflow-x:auto;white-space:pre;margin:0">{code}</pre>'


class Display(Protocol):
    """Output of a notebook's cell, updated in place."""

    def show(self, html: str, text: str) -> None:
        """Replace the output by ``html``, or by ``text`` in front ends without HTML."""


class CellDisplay:
    """The output of the running cell."""

    def __init__(self) -> None:
        self._id = f"sweeper-{uuid.uuid4().hex}"
        self._shown = False

    def show(self, html: str, text: str) -> None:
        from IPython.display import display

        content = {"text/html": html, "text/plain": text}
        display(content, raw=True, display_id=self._id, update=self._shown)
        self._shown = True


def notebook_display() -> Display | None:
    """Return the running cell's output; None if this process is not a notebook's kernel.

    IPython in a terminal has a shell but no kernel, and uses the terminal's output.
    """
    ipython: Any = sys.modules.get("IPython")
    find: Any = getattr(ipython, "get_ipython", None)
    shell = None if find is None else find()
    return None if getattr(shell, "kernel", None) is None else CellDisplay()


class NotebookProgress:
    """A listener that updates one display; safe for several threads."""

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
        # The context tells the kernel which cell is running.
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
        """Update the output."""
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
    """Return the terminal's output as HTML, with users' texts escaped."""
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
    """A listener that uses the terminal or the cell during a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, event: Event) -> None: ...


def progress_listener(stream: TextIO, verbosity: Verbosity = "normal") -> ProgressListener:
    """Return a live table if ``stream`` can redraw, otherwise plain lines.

    Args:
        stream: The output stream, unless this is a notebook's process.
        verbosity: Amount of output; with "quiet", nothing is drawn.
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
    """Return whether ``stream`` is a terminal that can redraw, and plain text is not requested.

    ``CI`` (unless "false" or "0"), a ``NO_COLOR`` that is not empty and ``TERM=dumb`` request it.
    """
    if environment.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()
