"""Events of a run, reported to listeners as they happen: a live table, a log, a test.

Events are advisory: what holds is in the database. A listener is called from the worker's
threads, one event at a time, and must return quickly; what it raises ends the run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sweeper.records.results import BestTrial, Outcome, Params, VerificationVerdict


@dataclass(frozen=True, slots=True)
class StudyOpened:
    """The study was created or found. ``finished`` trials of ``target`` were done before.

    ``best`` leads among those, and ``leaders`` are the first few, the best first. ``objectives``
    names them all, where there are several.
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
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    interrupted: int = 0
    leaders: tuple[BestTrial, ...] = ()
    paused: int = 0
    branches: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StudyCounted:
    """Counts of the whole study in its database, the work of other workers included."""

    complete: int
    pruned: int
    failed: int
    interrupted: int
    running: int
    best: BestTrial | None = None
    paused: int = 0


@dataclass(frozen=True, slots=True)
class Doing:
    """Something that training waits for has begun; ``trial`` is None where no trial has started."""

    what: str
    trial: int | None = None


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
    """A checkpoint is on disk, whole.

    ``seconds`` is how long its writing took, beside the training, and ``stalled_seconds`` how long
    the training stood still for it; None for one that was there before.
    """

    trial: int
    step: int
    bytes: int
    seconds: float | None = None
    stalled_seconds: float | None = None


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


@dataclass(frozen=True, slots=True)
class Remark(Notice):
    """A notice of what goes as it should, which nobody needs who asks for quiet."""


@dataclass(frozen=True, slots=True)
class RunStopping(Notice):
    """The run is about to end before its time: after a checkpoint of each trial, or ``at_once``."""

    at_once: bool = False


@dataclass(frozen=True, slots=True)
class RungDecided(Remark):
    """A rung is decided: ``promoted`` trials go on, and those that ``ended`` there do not."""

    epochs: int = 0
    bracket: int = 0
    promoted: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VerificationOpened:
    """``trials`` finished trials are about to be replayed, ``workers`` of them side by side."""

    study: str
    trials: int
    epochs: int
    objective: str
    direction: str
    workers: int
    storage: str


@dataclass(frozen=True, slots=True)
class TrialVerified:
    """A trial was replayed and compared, in ``seconds``; the verdict is stored."""

    trial: int
    verdict: VerificationVerdict
    seconds: float


@dataclass(frozen=True, slots=True)
class EvaluationOpened:
    """``checkpoints`` kept checkpoints of ``trials`` trials are about to be measured."""

    study: str
    trials: int
    checkpoints: int
    workers: int
    metric: str
    direction: str


@dataclass(frozen=True, slots=True)
class CheckpointMeasured:
    """A kept checkpoint was measured on held-out data; None where it could not be."""

    trial: int
    step: int | None
    metrics: Mapping[str, float] | None


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
    | VerificationOpened
    | TrialVerified
    | EvaluationOpened
    | CheckpointMeasured
)


class Listener(Protocol):
    """Receives every event of a run."""

    def __call__(self, event: Event) -> None: ...


class OneAtATime:
    """A listener that hears events from several threads, one at a time.

    Args:
        listener: Called with them.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._telling = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._telling:
            self._listener(event)
