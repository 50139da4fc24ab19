"""Progress as a table that redraws itself on a terminal, and the choice between it and lines.

What happened for good (a trial's end, a notice) is printed above the table and stays; the table is
cleared when the run ends, and the summary takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.events import AttemptEnded, Event, Notice
from sweeper.report.formats import objective_first, params_text, rate_text, time_text, value_text
from sweeper.report.lines import LineProgress, event_line
from sweeper.report.progress import ProgressModel, Snapshot, TrialProgress

__all__ = ["LiveProgress", "ProgressListener", "can_redraw", "draw", "progress_listener"]

_WIDE = 110
_METRIC_COLUMNS = 5
_OBJECTIVE = "bold cyan"
_OUTCOMES = {
    "complete": "green",
    "pruned": "yellow",
    "interrupted": "yellow",
    "failed": "bold red",
    "crashed": "bold red",
    "lost": "bold red",
}


class ProgressListener(Protocol):
    """A listener that holds the terminal while the run lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def __call__(self, event: Event) -> None: ...


def progress_listener(stream: TextIO) -> ProgressListener:
    """Return the live table where ``stream`` can redraw, and plain lines elsewhere."""
    if can_redraw(stream, os.environ):
        return LiveProgress(Console(file=stream))
    return LineProgress(stream)


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether ``stream`` is a terminal that redraws and whose user did not ask for plain text.

    ``CI`` (unless "false" or "0"), a ``NO_COLOR`` that is not empty and ``TERM=dumb`` ask for it.
    """
    if environment.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


class LiveProgress:
    """A listener that draws a run's table while it lasts. Safe from several threads.

    Args:
        console: The terminal.
        model: What is drawn; a new one by default.
    """

    def __init__(self, console: Console, model: ProgressModel | None = None) -> None:
        self._console = console
        self._model = model if model is not None else ProgressModel()
        self._live = Live(
            console=console,
            get_renderable=lambda: draw(self._model.snapshot(), console.width),
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        self._model.apply(event)
        line = event_line(event)
        if line is None:
            return
        if isinstance(event, AttemptEnded):
            self._console.print(Text(line, style=_OUTCOMES[event.outcome]))
        elif isinstance(event, Notice):
            self._console.print(Text(line, style="yellow"))


def draw(snapshot: Snapshot, width: int) -> RenderableType:
    """Draw ``snapshot`` for a terminal of ``width`` columns; 80 are enough.

    From 110 columns on each metric has a column; below that, a trial's metrics stand under it.
    """
    if snapshot.study is None:
        return Text("opening the study ...", style="dim")
    parts: list[RenderableType] = [Text(""), _header(snapshot)]
    if snapshot.running:
        parts.append(_wide(snapshot) if width >= _WIDE else _narrow(snapshot))
    parts.append(_best(snapshot))
    parts.append(
        Text.assemble(
            ("Ctrl-C checkpoints and stops; go on with: ", "dim"), snapshot.study.resume_command
        )
    )
    return Group(*parts)


def _header(snapshot: Snapshot) -> Text:
    study = snapshot.study
    if study is None:
        return Text()
    words = [(study.study, "bold"), (f"  {snapshot.done}/{study.target} done", "")]
    if snapshot.pruned:
        words.append((f", {snapshot.pruned} pruned", "yellow"))
    if snapshot.failed:
        words.append((f", {snapshot.failed} failed", "bold red"))
    words.append((f", {len(snapshot.running)} running", ""))
    words.append((f"  {time_text(snapshot.seconds)}", "dim"))
    if snapshot.seconds_left is not None:
        words.append((f", ~{time_text(snapshot.seconds_left)} left", ""))
    return Text.assemble(*words)


def _best(snapshot: Snapshot) -> Text:
    best, study = snapshot.best, snapshot.study
    if study is not None and study.objectives:
        return Text(f"objectives: {', '.join(study.objectives)}", style="dim")
    if best is None or study is None:
        return Text("best: none yet", style="dim")
    return Text.assemble(
        f"best: trial {best.number}  ",
        (f"{study.objective} {value_text(best.value)}", _OBJECTIVE),
        (f"  {params_text(best.params)}", ""),
    )


def _columns(table: Table) -> None:
    table.add_column("trial", justify="right", width=5)
    table.add_column("state", width=9)
    table.add_column("epoch", justify="right", min_width=7)
    table.add_column("", width=12)
    table.add_column("steps/s", justify="right", width=8)
    table.add_column("left", justify="right", width=7)


def _cells(trial: TrialProgress) -> list[RenderableType]:
    state = "resumed" if trial.resumed_at and not trial.metrics else trial.phase
    return [
        str(trial.number),
        Text(state, style="dim" if trial.phase == "preparing" else ""),
        f"{trial.epoch}/{trial.epochs}" if trial.epochs else "-",
        ProgressBar(total=1.0, completed=trial.fraction, width=12),
        rate_text(trial.rate),
        time_text(trial.seconds_left),
    ]


def _wide(snapshot: Snapshot) -> Table:
    objective = snapshot.study.objective if snapshot.study else None
    seen = {name: 0.0 for trial in snapshot.running for name in trial.metrics}
    names = objective_first(seen, objective)[:_METRIC_COLUMNS]
    table = Table(box=None, pad_edge=False, header_style="dim")
    _columns(table)
    for name in names:
        table.add_column(
            Text(name),
            justify="right",
            style=_OBJECTIVE if name == objective else "",
            overflow="ellipsis",
            no_wrap=True,
            min_width=8,
        )
    for trial in snapshot.running:
        metrics = [value_text(trial.metrics.get(name)) for name in names]
        table.add_row(*_cells(trial), *metrics)
    return table


def _narrow(snapshot: Snapshot) -> RenderableType:
    objective = snapshot.study.objective if snapshot.study else None
    rows: list[RenderableType] = []
    for index, trial in enumerate(snapshot.running):
        table = Table(box=None, pad_edge=False, header_style="dim", show_header=index == 0)
        _columns(table)
        table.add_row(*_cells(trial))
        rows.append(table)
        if trial.metrics:
            words = [
                (
                    f"{name} {value_text(trial.metrics[name])}  ",
                    _OBJECTIVE if name == objective else "",
                )
                for name in objective_first(trial.metrics, objective)
            ]
            rows.append(Text.assemble(" " * 6, *words, no_wrap=True, overflow="ellipsis"))
    return Group(*rows)
