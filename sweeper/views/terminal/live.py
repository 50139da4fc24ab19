"""Live progress of a run: a table on a terminal, or the output of a notebook's cell.

Jupyter, Colab and all other front ends with an IPython kernel replace an output when its display id
is displayed again. The cell keeps the last state after the run.

Events (a trial's end, a resume, a notice) are printed permanently above the table; the table is
cleared when the run ends, and replaced by the summary.
"""

import contextvars
import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from sweeper.records import events
from sweeper.views.formats import metrics_text
from sweeper.views.tables import STATE_STYLES, directions_text
from sweeper.views.terminal.lines import EventLines, LineProgress, Verbosity
from sweeper.views.terminal.model import RunState

_VERDICTS = {"holds": "green", "unpromised": "yellow", "differs": "bold red"}


REDRAWS = 5
"""Redraws a second without events."""


class _RateColumn(ProgressColumn):
    """Steps per second, with a decimal below 100; empty if unknown."""

    def render(self, task: Task) -> Text:
        rate = task.speed or 0.0
        text = f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s"
        return Text(text if rate else "", no_wrap=True)


class _MetricsColumn(ProgressColumn):
    """Metrics of the latest epoch, in the width that the other columns leave."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["metrics"], no_wrap=True, overflow="ellipsis")


class LiveProgress(Progress):
    """A listener that draws a run's counts and a row for each trial that runs here; safe for threads.

    Ends, resumes and notices have lines above the table; with "verbose", also epochs and checkpoints. A
    window that is too low for all trials ends with rich's ellipsis.
    """

    stop_with = "Ctrl-C"
    """The user's action to stop the run; empty if it is over."""

    def __init__(
        self,
        console: Console,
        verbosity: Verbosity = "normal",
        redraws: int = REDRAWS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = RunState(clock)
        self._lines = EventLines()
        self._verbose = verbosity == "verbose"
        self._rows: dict[int, TaskID] = {}
        super().__init__(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[phase]}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(compact=True),
            _MetricsColumn(Column()),
            console=console,
            auto_refresh=redraws > 0,
            refresh_per_second=max(redraws, 1),
            transient=True,
            redirect_stdout=False,
            get_time=clock,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return the lines on the run, and the table of trials."""
        yield Text("")
        yield from self.state.lines(self.stop_with)
        yield self.make_tasks_table(self.tasks)

    def __call__(self, event: events.Event) -> None:
        self.state.apply(event)
        self._apply(event)
        line = self._lines.line(event)
        style = self._style(event)
        if line is not None and style is not None:
            self._print(Text(line, style=style))
        if isinstance(event, events.RunStopping):
            # Trials may be gone before the table is drawn the next time.
            self.refresh()

    def _print(self, line: Text) -> None:
        self.console.print(line)

    def _style(self, event: events.Event) -> str | None:
        """Return the style of the line above the table; None if the event has none."""
        match event:
            case events.AttemptEnded():
                return STATE_STYLES.get(event.outcome, "bold red")
            case events.TrialVerified():
                return _VERDICTS[event.verdict]
            case events.Notice():
                return "yellow"
            case events.StudyOpened() if directions_text(event):
                return "dim"
            case events.TrainingStarted() if event.start_step:
                return "cyan"
            case events.TrainingStarted() | events.EpochFinished() if self._verbose:
                return "dim"
            case events.CheckpointKept() if self._verbose and event.seconds is not None:
                return "dim"
            case _:
                return None

    def _apply(self, event: events.Event) -> None:
        match event:
            case events.Doing() if event.trial is not None:
                self.update(self._row(event.trial), phase=event.what)
            case events.AttemptStarted():
                self._row(event.trial)
            case events.TrainingStarted():
                row = self._row(event.trial)
                total = event.epochs * event.steps_per_epoch
                # So that steps of an earlier attempt are not in its rate.
                self.reset(row, completed=event.start_step)
                self.update(row, total=total or None)
                self._step(row, event.start_step, event.start_epoch, epochs=event.epochs)
            case events.StepsDone():
                self._step(self._row(event.trial), event.step, event.epoch)
            case events.EpochFinished():
                row = self._row(event.trial)
                self._step(row, event.step, event.epoch + 1)
                self.update(row, metrics=metrics_text(event.metrics, self._lines.objective))
            case events.AttemptEnded() if event.trial in self._rows:
                self.remove_task(self._rows.pop(event.trial))

    def _row(self, trial: int) -> TaskID:
        if trial not in self._rows:
            fields: dict[str, Any] = {"phase": "preparing", "metrics": "", "epochs": 0}
            self._rows[trial] = self.add_task(f"trial {trial}", total=None, **fields)
        return self._rows[trial]

    def _step(self, row: TaskID, step: int, epoch: int, **options: Any) -> None:
        """Show a step; ``epoch`` is the number of finished epochs."""
        task = next(task for task in self.tasks if task.id == row)
        epochs = options.get("epochs", task.fields["epochs"])
        total = task.total
        if total is None and epoch and epochs:
            total = step / epoch * epochs
        phase = f"epoch {min(epoch + 1, epochs or epoch + 1)}" + (f"/{epochs}" if epochs else "")
        options |= {"phase": phase, "completed": step, "total": total}
        self.update(row, **options)


REDRAW_SECONDS = 1.0
"""Seconds between two updates of the cell."""

MOST_LINES = 8
"""Number of the latest ends and notices below the table."""

WIDTH = 110
"""Columns of the drawing."""

_CELL = '<pre style="overflow-x:auto;white-space:pre;margin:0">{code}</pre>'


def is_notebook() -> bool:
    """Return whether this process is a notebook's kernel.

    IPython in a terminal has a shell but no kernel, and uses the terminal's output.
    """
    find: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return find is not None and getattr(find(), "kernel", None) is not None


class NotebookProgress(LiveProgress):
    """A listener that updates the output of the running cell, or of IPython's ``handle``."""

    stop_with = "Interrupting the kernel"

    def __init__(self, handle: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_console(), redraws=0, clock=clock)
        self._handle = handle
        self._latest: deque[Text] = deque(maxlen=MOST_LINES)
        self._written = 0
        self._showing = threading.Lock()
        self._over = threading.Event()
        # The context tells the kernel which cell is running.
        run = contextvars.copy_context().run
        name = "sweeper-notebook"
        self._thread = threading.Thread(
            target=run, args=(self._keep_showing,), name=name, daemon=True
        )

    def start(self) -> None:
        """Display the output, and update it at intervals."""
        if self._handle is None:
            from IPython.display import DisplayHandle

            self._handle = DisplayHandle()
        self._handle.display(self._content(), raw=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the last state."""
        # The thread ends first, so that it cannot replace the last state by an earlier one.
        self._over.set()
        self._thread.join()
        self.stop_with = ""
        self.show()

    def show(self) -> None:
        self._handle.update(self._content(), raw=True)

    def _print(self, line: Text) -> None:
        # The thread that updates the cell reads both.
        with self._showing:
            self._latest.append(line)
            self._written += 1

    def _content(self) -> dict[str, str]:
        """Return the output as HTML, and as text for front ends without HTML."""
        with self._showing:
            earlier = self._written - len(self._latest)
            parts = [Text(f"({earlier} earlier lines)", style="dim")] if earlier else []
            console = _console()
            console.print(self.get_renderable(), *parts, *self._latest, sep="\n")
            # As HTML, with users' texts escaped.
            html = console.export_html(inline_styles=True, code_format=_CELL)
            text = f"{self.state.name}{self.state.brief()}" or "opening the study ..."
            return {"text/html": html, "text/plain": text}

    def _keep_showing(self) -> None:
        while not self._over.wait(REDRAW_SECONDS):
            self.show()


def _console() -> Console:
    return Console(
        file=io.StringIO(),
        width=WIDTH,
        record=True,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
    )


def progress_listener(
    stream: TextIO, verbosity: Verbosity = "normal"
) -> LiveProgress | LineProgress:
    """Return a live table if ``stream`` can redraw, the cell of a notebook, or else plain lines."""
    if verbosity == "quiet":
        return LineProgress(stream, verbosity)
    if is_notebook():
        return NotebookProgress()
    if can_redraw(stream, os.environ):
        return LiveProgress(Console(file=stream), verbosity)
    return LineProgress(stream, verbosity)


@contextmanager
def listening(listener: events.Listener | None, *first: events.Event) -> Iterator[events.Listener]:
    """Return the caller's listener, or one that shows the progress, which gets the ``first`` events."""
    if listener is not None:
        yield listener
        return
    with progress_listener(sys.stderr) as progress:
        for event in first:
            progress(event)
        yield progress


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether ``stream`` is a terminal that can redraw, and plain text is not requested.

    ``CI`` (unless "false" or "0"), a ``NO_COLOR`` that is not empty and ``TERM=dumb`` request it.
    """
    if environment.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()
