"""Events of a run for listeners such as a live table, a log or a test.

Events are advisory; the database is authoritative. A listener is called from the worker's threads, one
event at a time, and must return quickly. An error that it raises ends the run.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sweeper.declarations.repeating import Repeating
from sweeper.records.exactness import VerificationVerdict
from sweeper.records.results import Outcome, Params, StudyStatus

_EACH_ONCE = Repeating()


@dataclass(frozen=True, slots=True)
class StudyOpened:
    """The study was created or opened; ``status`` has the trials of earlier runs.

    Studies with ``repeating`` configurations are led by one of these, and all others by a trial.
    ``directed_by_name`` are the objectives whose direction is that of their name.
    """

    status: StudyStatus
    workers: int
    storage: str
    resume_command: str = ""
    repeating: Repeating = _EACH_ONCE
    directed_by_name: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyCounted:
    """Status of the whole study in its database, including trials of other workers."""

    status: StudyStatus


@dataclass(frozen=True, slots=True)
class Doing:
    """An activity has started for which training waits; ``trial`` is None before the first trial."""

    what: str
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A worker claimed a trial. ``attempt`` counts from 1."""

    trial: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TrainingStarted:
    """The factories have run, and the first step is next.

    ``start_step`` and ``start_epoch`` are above 0 if the trial resumes from a checkpoint.
    ``steps_per_epoch`` is 0 if it is unknown before the end of an epoch.
    """

    trial: int
    params: Params
    epochs: int
    steps_per_epoch: int
    start_step: int
    start_epoch: int = 0


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Progress of training; sent at most a few times a second."""

    trial: int
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class EpochFinished:
    """An epoch has ended; ``seconds`` includes its validation."""

    trial: int
    epoch: int
    step: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointKept:
    """A checkpoint is completely written.

    ``seconds`` is the duration of writing it in the background, and ``stalled_seconds`` that for which
    training waited; None for a checkpoint of an earlier attempt.
    """

    trial: int
    step: int
    bytes: int
    seconds: float | None = None
    stalled_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended. ``error`` is one line; the trial's record contains all of it.

    ``reuses`` is the number of the trial whose result the trial takes, if it is not trained. ``over`` is whether the
    trial has ended with it; None: as the outcome says.
    """

    trial: int
    attempt: int
    outcome: Outcome
    value: float | None = None
    error: str | None = None
    reuses: int | None = None
    over: bool | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Information for the user: a fallback, a wait, a retry, or a promise that does not hold."""

    message: str


@dataclass(frozen=True, slots=True)
class Remark(Notice):
    """A notice about normal operation, which is left out of quiet output."""


@dataclass(frozen=True, slots=True)
class RunStopping(Notice):
    """The run is stopping early: after a checkpoint of each trial, or ``at_once``."""

    at_once: bool = False


@dataclass(frozen=True, slots=True)
class RungDecided(Remark):
    """A rung was decided: ``promoted`` trials continue, and ``ended`` trials do not."""

    epochs: int = 0
    bracket: int = 0
    promoted: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChecksOpened:
    """A verification of ``total`` trials, or an evaluation of ``total`` kept checkpoints, starts.

    ``done`` is the word for a finished one, and ``objective`` the metric that is named first.
    """

    study: str
    done: Literal["verified", "measured"]
    total: int
    workers: int
    objective: str


@dataclass(frozen=True, slots=True)
class TrialVerified:
    """A trial was replayed and compared in ``seconds``, and the verdict is stored."""

    trial: int
    verdict: VerificationVerdict
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointMeasured:
    """A kept checkpoint was evaluated on held-out data."""

    trial: int
    step: int
    metrics: Mapping[str, float]


Event = (
    StudyOpened
    | StudyCounted
    | Doing
    | AttemptStarted
    | TrainingStarted
    | StepsDone
    | EpochFinished
    | CheckpointKept
    | AttemptEnded
    | Notice
    | ChecksOpened
    | TrialVerified
    | CheckpointMeasured
)


Listener = Callable[[Event], None]
"""Receiver of a run's events."""


class OneAtATime:
    """Listener that passes events of several threads to ``listener``, one at a time."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        # Listeners of users are written for one thread.
        with self._lock:
            self._listener(event)
