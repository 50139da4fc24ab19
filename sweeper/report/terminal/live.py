"""Progress as a table that redraws itself on a terminal.

What happened for good (a trial's end, a resume, a notice) is printed above the table and stays; the
table is cleared when the run ends, and the summary takes its place.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweeper.events import (
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
from sweeper.report.terminal.drawing import draw
from sweeper.report.terminal.lines import Verbosity, event_line
from sweeper.report.terminal.model import ProgressModel

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
