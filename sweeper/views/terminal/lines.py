"""Progress as plain lines, for logs, pipes and terminals that cannot redraw.

The lines are stable, so that scripts may search them. Until the end of the run's first epoch, the current
activity has a line too. Of a trial's epochs about ten are reported, including the first and the last; with
``-v`` every epoch and every checkpoint.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, TextIO

from sweeper.records import events
from sweeper.records.printing import counted
from sweeper.support.shown import shown_url
from sweeper.views import formats
from sweeper.views.tables import directions_text
from sweeper.views.terminal.model import RunState

Verbosity = Literal["quiet", "normal", "verbose"]
"""Amount of output: problems only, normal, or every epoch and checkpoint."""

MOST_EPOCHS = 10
"""Approximate number of a trial's epochs that have a line."""

WIDTH = 100
"""Columns of a line on the progress of a trial."""

_LEAST_WORDS = 6
"""Words of a line that are always there: trial, attempt or epoch, and their numbers."""

STEP_SECONDS = 10.0
"""Seconds between two lines on the progress of the first epoch."""

_GONE_WRONG = ("failed", "crashed", "lost")


class EventLines:
    """Formatter of events as lines, which keeps what a line needs of earlier events."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self._attempts: dict[int, int] = {}
        self._errors: dict[str, int] = {}
        self.objective: str | None = None

    def line(self, event: events.Event) -> str | None:
        """Return the line of ``event`` without its end; None if it has none.

        An attempt's first line is that of its `TrainingStarted`, which has the parameters and the step.
        The objective is the first of the metrics.
        """
        match event:
            case events.StudyOpened() | events.ChecksOpened():
                return self._opening(event)
            case events.AttemptStarted():
                self._attempts[event.trial] = event.attempt
                return None
            case events.Notice():
                return f"notice: {formats.one_line(event.message)}"
            case events.TrialVerified():
                return f"trial {event.trial} verified {event.verdict} {formats.time_text(event.seconds)}"
            case events.CheckpointKept():
                line = f"trial {event.trial} checkpoint at step {event.step} {formats.size_text(event.bytes)}"
                if event.seconds is not None:
                    line += f" in {formats.time_text(event.seconds)}"
                if event.stalled_seconds is not None:
                    line += f", training waited {formats.time_text(event.stalled_seconds)}"
                return line
            case events.CheckpointMeasured():
                metrics = formats.metrics_text(event.metrics, self.objective)
                return f"trial {event.trial} measured at step {event.step} {metrics}".rstrip()
            case events.TrainingStarted() | events.EpochFinished() | events.AttemptEnded():
                return self._training(event)
            case _:
                return None

    def _opening(self, event: events.StudyOpened | events.ChecksOpened) -> str:
        workers = counted(event.workers, "worker")
        if isinstance(event, events.ChecksOpened):
            self.objective = event.objective
            return f"study {event.study}: 0/{event.total} {event.done}, {workers}"
        status = event.status
        self.objective = status.objective
        progress = f"{status.finished}/{status.target} done"
        directions = directions_text(event)
        objectives = f"{directions}; " if directions else ""
        storage = f"storage {shown_url(event.storage)}"
        return f"study {status.study}: {objectives}{progress}, {workers}, {storage}"

    def _training(
        self, event: events.TrainingStarted | events.EpochFinished | events.AttemptEnded
    ) -> str:
        if isinstance(event, events.TrainingStarted):
            self.epochs[event.trial] = event.epochs
            attempt = self._attempts.get(event.trial, 1)
            start = f"resumed at step {event.start_step}" if event.start_step else "started"
            params = formats.params_text(event.params)
            return f"trial {event.trial} attempt {attempt} {start} {params}".rstrip()
        if isinstance(event, events.EpochFinished):
            epochs = self.epochs.get(event.trial)
            of = "" if epochs is None else f"/{epochs}"
            metrics = formats.metrics_text(event.metrics, self.objective)
            seconds = formats.time_text(event.seconds)
            return f"trial {event.trial} epoch {event.epoch + 1}{of} {metrics} in {seconds}"
        if event.reuses is not None:
            same = f"has the parameters of trial {event.reuses} and takes its result"
            return f"trial {event.trial} {same}"
        value = "" if event.value is None else f" value={formats.value_text(event.value, 6)}"
        error = ""
        if event.error is not None:
            first = self._errors.setdefault(event.error, event.trial)
            same = f" with the error of trial {first}"
            error = f" {formats.one_line(event.error)}" if first == event.trial else same
        return f"trial {event.trial} attempt {event.attempt} {event.outcome}{value}{error}"


class LineProgress(AbstractContextManager["LineProgress"]):
    """A listener that writes one line for each reported event; safe for several threads."""

    def __init__(
        self,
        stream: TextIO,
        verbosity: Verbosity = "normal",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._stream = stream
        self._verbosity = verbosity
        self._lock = threading.Lock()
        self._state = RunState()
        self._lines = EventLines()
        self._waiting = verbosity != "quiet"
        self._next_step = 0.0

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, event: events.Event) -> None:
        # So that lines of two slots do not mix, and are in the order of the state that they show.
        with self._lock:
            self._state.apply(event)
            line = self._lines.line(event)
            self._write_activity(event)
            trial = getattr(event, "trial", -1)
            if line is None or not is_reported(
                event, self._verbosity, self._lines.epochs.get(trial)
            ):
                return
            opens = isinstance(event, events.StudyOpened | events.ChecksOpened)
            stateless = opens or isinstance(event, events.Notice)
            self._write(line if stateless else self._with_state(event, line))
            if self._waiting and isinstance(event, events.TrainingStarted):
                self._write(f"trial {trial}: tracing and running its first step ...")

    def _with_state(self, event: events.Event, line: str) -> str:
        """Return the line with the run's state, without what does not fit; no error is cut."""
        room = WIDTH - len(self._state.brief())
        if len(line) <= room:
            return f"{line}{self._state.brief()}"
        state = self._state.brief(leads=False)
        words = line.split(" ")
        trailing_words = int(isinstance(event, events.EpochFinished))
        if (
            isinstance(event, events.TrainingStarted | events.EpochFinished)
            and len(line) + len(state) > WIDTH
        ):
            # An epoch's seconds are its last word.
            words[len(words) - trailing_words : len(words) - trailing_words] = ["…"]
            while len(" ".join(words)) + len(state) > WIDTH and len(words) > _LEAST_WORDS:
                del words[-2 - trailing_words]
        return f"{' '.join(words)}{state}"

    def _write_activity(self, event: events.Event) -> None:
        """Write the current activity before the end of the run's first epoch."""
        if isinstance(event, events.EpochFinished | events.AttemptEnded | events.TrialVerified):
            self._waiting = False
        if not self._waiting:
            return
        match event:
            case events.Doing(trial=None):
                self._write(f"{event.what} ...")
            case events.Doing():
                self._write(f"trial {event.trial}: {event.what} ...")
            case events.AttemptStarted():
                self._write(f"trial {event.trial}: starting ...")
            case events.StepsDone() if self._clock() >= self._next_step:
                self._next_step = self._clock() + STEP_SECONDS
                self._write(
                    f"trial {event.trial}: in epoch {event.epoch + 1}, at step {event.step} ..."
                )

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


def is_reported(event: events.Event, verbosity: Verbosity, epochs: int | None = None) -> bool:
    """Return whether ``event`` is reported; ``epochs`` is the number of epochs of its trial, if known."""
    match event:
        case events.Notice():
            return verbosity != "quiet" or not isinstance(event, events.Remark)
        case events.AttemptEnded():
            return verbosity != "quiet" or event.outcome in _GONE_WRONG
        case events.TrialVerified():
            return verbosity != "quiet" or event.verdict == "differs"
        case events.CheckpointKept():
            return verbosity == "verbose" and event.seconds is not None
        case events.EpochFinished() if verbosity == "normal" and epochs is not None:
            every = max(1, epochs // MOST_EPOCHS)
            number = event.epoch + 1
            return number in (1, epochs) or number % every == 0
        case _:
            return verbosity != "quiet"
