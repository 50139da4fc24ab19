"""Progress as plain lines, for logs, pipes and terminals that cannot redraw.

The lines are stable, so that scripts may search them::

    study digits: 3/16 done, 2 workers, storage sqlite:///runs/sweeper.db
    trial 4 attempt 1 started learning_rate=0.001
    trial 3 attempt 2 resumed at step 420 learning_rate=0.01
    trial 4 epoch 1/5 val_accuracy=0.93 loss=0.21 1.2s
    trial 4 attempt 1 complete value=0.95
    trial 5 attempt 1 failed FactoryError: the model factory returned None
    notice: ...
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self, TextIO

from sweeper.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    EpochFinished,
    Event,
    Notice,
    StepsDone,
    StudyOpened,
    TrainingStarted,
)
from sweeper.report.formats import metrics_text, one_line, params_text, time_text, value_text
from sweeper.shown import shown_url

__all__ = ["LineProgress", "event_line"]


class LineProgress:
    """A listener that writes one line for each event worth one. Safe from several threads.

    Args:
        stream: Where the lines go, each written whole and flushed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._attempts: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._objective: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case StudyOpened():
                    self._objective = event.objective
                case AttemptStarted():
                    self._attempts[event.trial] = event.attempt
                case TrainingStarted():
                    self._epochs[event.trial] = event.epochs
                case _:
                    pass
            trial = getattr(event, "trial", -1)
            line = event_line(
                event,
                objective=self._objective,
                attempt=self._attempts.get(trial, 1),
                epochs=self._epochs.get(trial),
            )
            if line is not None:
                self._stream.write(f"{line}\n")
                self._stream.flush()


def event_line(
    event: Event, *, objective: str | None = None, attempt: int = 1, epochs: int | None = None
) -> str | None:
    """Write ``event`` as one line without its end, or None where it is not worth one.

    An attempt's line comes with its `TrainingStarted`, which knows the parameters and the step.

    Args:
        event: What happened.
        objective: The metric that is written first.
        attempt: The number of the attempt that the event's trial is in.
        epochs: How many epochs that trial runs, when known.
    """
    match event:
        case StudyOpened():
            workers = f"{event.workers} worker{'' if event.workers == 1 else 's'}"
            return (
                f"study {event.study}: {event.finished}/{event.target} done, {workers}, "
                f"storage {shown_url(event.storage)}"
            )
        case TrainingStarted():
            how = f"resumed at step {event.start_step}" if event.start_step else "started"
            return (
                f"trial {event.trial} attempt {attempt} {how} {params_text(event.params)}".rstrip()
            )
        case EpochFinished():
            of = "" if epochs is None else f"/{epochs}"
            metrics = metrics_text(event.metrics, objective)
            return (
                f"trial {event.trial} epoch {event.epoch + 1}{of} {metrics} "
                f"{time_text(event.seconds)}"
            )
        case AttemptEnded():
            ended = f"trial {event.trial} attempt {event.attempt} {event.outcome}"
            value = "" if event.value is None else f" value={value_text(event.value, 6)}"
            error = "" if event.error is None else f" {one_line(event.error)}"
            return f"{ended}{value}{error}"
        case Notice():
            return f"notice: {one_line(event.message)}"
        case AttemptStarted() | StepsDone() | CheckpointKept():
            return None
