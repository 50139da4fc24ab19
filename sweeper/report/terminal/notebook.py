"""Progress in a notebook's cell: one table that is updated in place, not a line an epoch.

Jupyter, Colab and everything else with an IPython kernel show what is displayed under an id again
when it is displayed anew. The cell keeps the last state when the run is over.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from html import escape
from types import TracebackType
from typing import Any, Protocol, Self

from sweeper.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Notice,
    TrainingStarted,
    TrialVerified,
)
from sweeper.report.formats import params_text, rate_text, time_text, value_text
from sweeper.report.terminal.lines import checkpoint_text, event_line, state_text
from sweeper.report.terminal.model import ProgressModel, Snapshot, TrialProgress

REDRAW_SECONDS = 1.0
"""Between two updates of the cell."""

MOST_LINES = 8
"""So many of the latest ends and notices stand below the table."""

_CELL = "text-align:right;padding:2px 10px"
_TEXT = "text-align:left;padding:2px 10px"


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
    """The running cell's output; None where this process is no notebook's kernel.

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
        model: What is shown; a new one by default.
        redraws: Whether the display is updated by itself, about once a second.
    """

    def __init__(
        self, display: Display, model: ProgressModel | None = None, *, redraws: bool = True
    ) -> None:
        self._display = display
        self._model = model if model is not None else ProgressModel()
        self._redraws = redraws
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._lines_shown = 0
        self._attempts: dict[int, int] = {}
        self._showing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.refresh()
        if self._redraws:
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
        if isinstance(event, AttemptStarted):
            self._attempts[event.trial] = event.attempt
        resumed = isinstance(event, TrainingStarted) and event.start_step > 0
        if not resumed and not isinstance(event, AttemptEnded | Notice | TrialVerified):
            return
        line = event_line(event, attempt=self._attempts.get(getattr(event, "trial", -1), 1))
        if line is not None:
            with self._showing:
                self._lines.append(line)
                self._lines_shown += 1

    def refresh(self) -> None:
        """Show the run as it is now."""
        with self._showing:
            snapshot = self._model.snapshot()
            earlier = self._lines_shown - len(self._lines)
            html = page(snapshot, self._lines, earlier, running=not self._over.is_set())
            self._display.show(html, _plain(snapshot))

    def _keep_showing(self) -> None:
        while not self._over.wait(REDRAW_SECONDS):
            self.refresh()


def page(snapshot: Snapshot, lines: Iterable[str], earlier: int, *, running: bool = True) -> str:
    """The HTML of one moment of a run.

    Args:
        snapshot: The moment.
        lines: The latest ends and notices.
        earlier: How many more there were before those.
        running: Whether the run goes on.
    """
    study, measured = snapshot.study, snapshot.measured
    if study is None and measured is None:
        return "<div>opening the study ...</div>"
    name = measured.opened.study if study is None and measured is not None else ""
    head = f"<b>{escape(study.study if study is not None else name)}</b>"
    parts = [f"<div>{head}{escape(state_text(snapshot))}{escape(_counts(snapshot))}</div>"]
    if snapshot.checkpoint is not None:
        kept = snapshot.checkpoint
        cost = f"{checkpoint_text(kept)} (trial {kept.trial}, step {kept.step})"
        parts.append(f"<div>last checkpoint: {cost}</div>")
    if snapshot.running:
        parts.append(_running(snapshot))
    if snapshot.leaders and study is not None:
        parts.append(_leaders(snapshot, study.objective))
    shown = [escape(line) for line in lines]
    if earlier:
        shown.insert(0, f"({earlier} earlier lines)")
    if shown:
        parts.append(f"<pre style='margin:4px 0'>{chr(10).join(shown)}</pre>")
    if running and snapshot.verified is None and study is not None:
        advice = (
            "interrupting the kernel checkpoints and stops; go on with "
            if snapshot.stopping is None
            else "stopping: every trial writes a checkpoint; interrupting again kills; go on with "
        )
        parts.append(f"<div>{advice}<code>{escape(study.resume_command)}</code></div>")
    return "".join(parts)


def _plain(snapshot: Snapshot) -> str:
    name = "" if snapshot.study is None else snapshot.study.study
    return f"{name}{state_text(snapshot)}" or "opening the study ..."


def _counts(snapshot: Snapshot) -> str:
    counts = (
        (len(snapshot.running), "running"),
        (snapshot.elsewhere, "elsewhere"),
        (snapshot.pruned, "pruned"),
        (snapshot.failed, "failed"),
        (snapshot.interrupted, "interrupted"),
        (snapshot.paused, "paused"),
        (snapshot.waiting, "waiting"),
    )
    text = "".join(f", {count} {what}" for count, what in counts if count)
    text += f"  {time_text(snapshot.seconds)}"
    if snapshot.seconds_left:
        text += f", ~{time_text(snapshot.seconds_left)} left"
    return text


def _running(snapshot: Snapshot) -> str:
    objective = snapshot.study.objective if snapshot.study else ""
    several = snapshot.study is not None and bool(snapshot.study.objectives)
    heads = ["trial", "epoch", "step", "steps/s", "left", *([] if several else [objective])]
    rows = [_row(heads, "th")]
    for trial in snapshot.running:
        cells = _cells(trial)
        if not several:
            cells.append(value_text(trial.metrics.get(objective)))
        rows.append(_row([*cells, params_text(trial.params)], "td"))
    return f"<table>{''.join(rows)}</table>"


def _cells(trial: TrialProgress) -> list[str]:
    if not trial.epochs:
        return [str(trial.number), "preparing", "-", "-", "-"]
    step = f"{trial.step}/{trial.steps}" if trial.steps else str(trial.step)
    return [
        str(trial.number),
        f"{trial.epoch}/{trial.epochs}",
        step,
        rate_text(trial.rate),
        time_text(trial.seconds_left),
    ]


def _leaders(snapshot: Snapshot, objective: str) -> str:
    rows = [_row(["best", objective], "th")]
    rows += [
        _row([f"trial {each.number}", value_text(each.value), params_text(each.params)], "td")
        for each in snapshot.leaders
    ]
    return f"<table>{''.join(rows)}</table>"


def _row(cells: Iterable[str], kind: str) -> str:
    written = "".join(
        f"<{kind} style='{_TEXT if '=' in cell else _CELL}'>{escape(cell)}</{kind}>"
        for cell in cells
    )
    return f"<tr>{written}</tr>"
