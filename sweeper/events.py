"""What happens during a run, told as it happens to whoever listens: a live table, a log, a test.

Events carry news, not truth: the database has that. A listener is called from the worker's
threads, one event at a time, and must return quickly; what it raises ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sweeper.results import BestTrial, Outcome, Params

__all__ = [
    "AttemptEnded",
    "AttemptStarted",
    "CheckpointKept",
    "EpochFinished",
    "Event",
    "Listener",
    "Notice",
    "OneAtATime",
    "StepsDone",
    "StudyOpened",
    "TrainingStarted",
]


@dataclass(frozen=True, slots=True)
class StudyOpened:
    """The study was created or found. ``finished`` trials of ``target`` were done before.

    ``best`` leads among those. ``objectives`` names them all, where there are several.
    """

    study: str
    target: int
    finished: int
    epochs: int
    objective: str
    direction: str
    workers: int
    storage: str
    resume_command: str
    best: BestTrial | None = None
    objectives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A worker claimed a trial. ``number`` counts attempts from 1."""

    trial: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TrainingStarted:
    """The factories are done and the first step is about to run.

    ``start_step`` and ``start_epoch`` are above 0 when the trial goes on from a checkpoint.
    ``steps_per_epoch`` is 0 where only an epoch's end tells how many steps it has.
    """

    trial: int
    params: Params
    epochs: int
    steps_per_epoch: int
    start_step: int
    start_epoch: int = 0


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Training has come this far; sent a few times a second at most."""

    trial: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class EpochFinished:
    """An epoch ended, validation included, in ``seconds``."""

    trial: int
    epoch: int
    step: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """A checkpoint is on disk, whole."""

    trial: int
    step: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over. ``error`` is one line; the trial's record has it whole."""

    trial: int
    attempt: int
    outcome: Outcome
    value: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know: a fallback, a wait, a retry, a promise that does not hold."""

    message: str


Event = (
    StudyOpened
    | AttemptStarted
    | TrainingStarted
    | StepsDone
    | EpochFinished
    | CheckpointKept
    | AttemptEnded
    | Notice
)


class Listener(Protocol):
    """Receives every event of a run."""

    def __call__(self, event: Event) -> None: ...


class OneAtATime:
    """A listener that hears events from several threads, one at a time.

    Args:
        listener: Told of them.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._telling = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._telling:
            self._listener(event)
