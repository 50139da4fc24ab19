"""What a run looks like right now, computed from its events alone: no terminal, no real clock.

`ProgressModel` takes events and answers with a `Snapshot`, frozen, which `sweeper.report.live`
draws. Durations come from an injected clock, so a test decides how fast time goes by.

Time left is estimated from medians of measured epochs rather than means: the first epoch of a trial
holds graph tracing, and one epoch during which the machine slept must not spoil the rest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

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
from sweeper.results import BestTrial, Params, TrialState

__all__ = ["ProgressModel", "Snapshot", "TrialProgress"]

RATE_WINDOW = 10.0
"""Seconds of steps behind the rate that is shown."""

LEAST_WINDOW = 0.2
"""Seconds of steps without which a rate would be noise."""

RECENT_EPOCHS = 9
"""A trial's latest epochs whose median says how long the next ones take."""


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """One running trial.

    Attributes:
        phase: "preparing" until its first step, then "training".
        epoch: The epoch it is in, from 1, as people count; 0 while it is being prepared.
        epochs: How many epochs the trial will run at most.
        fraction: How far it is through that epoch, from 0 to 1.
        metrics: Of its latest finished epoch.
        rate: Steps per second over the last seconds, or None when not yet known.
        seconds_left: Until its last epoch ends, or None when not yet known.
        resumed_at: The step that it went on from, or 0.
    """

    number: int
    attempt: int
    phase: str
    params: Params
    epoch: int
    epochs: int
    fraction: float
    metrics: Mapping[str, float]
    rate: float | None
    seconds_left: float | None
    resumed_at: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole run at one moment.

    Attributes:
        study: The study as it was opened, or None before that.
        done: Trials with a result (complete, pruned or failed), earlier runs included.
        failed: Of this run.
        pruned: Of this run.
        running: The running trials by number.
        seconds: Since the model was made.
        seconds_left: For the whole study, or None when not yet known.
        best: The study's leading trial, of earlier runs too.
    """

    study: StudyOpened | None
    done: int
    failed: int
    pruned: int
    running: tuple[TrialProgress, ...]
    seconds: float
    seconds_left: float | None
    best: BestTrial | None


@dataclass
class _Attempt:
    """What is known of a running attempt."""

    trial: int
    attempt: int
    began: float
    training: TrainingStarted | None = None
    step: int = 0
    stepped: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs_finished: int = 0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPOCHS))
    samples: deque[tuple[float, int]] = field(default_factory=deque)
    trained: float = 0.0
    epoch_began_at: int = 0

    @property
    def fraction(self) -> float:
        """How much of the epoch that has begun is done; 0 where its length is not known."""
        if self.training is None or self.training.steps_per_epoch == 0:
            return 0.0
        within = (self.step - self.epoch_began_at) / self.training.steps_per_epoch
        return min(1.0, max(0.0, within))


class ProgressModel:
    """Keeps a run's state. Safe to use from several threads.

    Args:
        clock: Seconds from any origin, never falling. Default `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._study: StudyOpened | None = None
        self._running: dict[int, _Attempt] = {}
        self._states: dict[int, TrialState] = {}
        self._best: BestTrial | None = None
        self._durations: deque[float] = deque(maxlen=50)
        self._epochs_run: deque[int] = deque(maxlen=50)
        self._overheads: deque[float] = deque(maxlen=50)

    def apply(self, event: Event) -> None:
        """Take one event in. Events of attempts that were never started are taken as they come."""
        with self._lock:
            self._apply(event, self._clock())

    def snapshot(self) -> Snapshot:
        """Return the run as it is now."""
        with self._lock:
            now = self._clock()
            finished_before = self._study.finished if self._study else 0
            ended = [s for s in self._states.values() if s in ("complete", "pruned", "failed")]
            attempts = [self._running[number] for number in sorted(self._running)]
            return Snapshot(
                study=self._study,
                done=finished_before + len(ended),
                failed=ended.count("failed"),
                pruned=ended.count("pruned"),
                running=tuple(self._trial(attempt, now) for attempt in attempts),
                seconds=now - self._began,
                seconds_left=self._study_left(finished_before + len(ended), now),
                best=self._best,
            )

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case StudyOpened():
                self._study = event
                self._best = event.best
            case AttemptStarted():
                self._running[event.trial] = _Attempt(event.trial, event.attempt, began=now)
                self._states[event.trial] = "running"
            case TrainingStarted():
                attempt = self._attempt(event.trial, now)
                attempt.training = event
                attempt.epochs_finished = event.start_epoch
                attempt.epoch_began_at = event.start_epoch * event.steps_per_epoch
                self._stepped(attempt, event.start_step, now)
            case StepsDone():
                self._stepped(self._attempt(event.trial, now), event.step, now)
            case EpochFinished():
                self._epoch_finished(self._attempt(event.trial, now), event, now)
            case AttemptEnded():
                self._ended(event, now)
            case CheckpointKept() | Notice():
                pass

    def _attempt(self, trial: int, now: float) -> _Attempt:
        return self._running.setdefault(trial, _Attempt(trial, 1, began=now))

    def _stepped(self, attempt: _Attempt, step: int, now: float) -> None:
        attempt.step, attempt.stepped = step, now
        attempt.samples.append((now, step))
        while len(attempt.samples) > 2 and now - attempt.samples[1][0] >= RATE_WINDOW:
            attempt.samples.popleft()

    def _epoch_finished(self, attempt: _Attempt, event: EpochFinished, now: float) -> None:
        attempt.metrics = dict(event.metrics)
        attempt.epochs_finished = event.epoch + 1
        attempt.epoch_began_at = event.step
        attempt.durations.append(event.seconds)
        attempt.trained += event.seconds
        self._durations.append(event.seconds)
        self._stepped(attempt, event.step, now)

    def _ended(self, event: AttemptEnded, now: float) -> None:
        attempt = self._running.pop(event.trial, None)
        state: TrialState = (
            event.outcome if event.outcome in ("complete", "pruned", "failed") else "interrupted"
        )
        self._states[event.trial] = state
        if attempt is None or state not in ("complete", "pruned"):
            return
        self._epochs_run.append(attempt.epochs_finished)
        if attempt.training is not None:
            self._overheads.append(max(0.0, now - attempt.began - attempt.trained))
        params = attempt.training.params if attempt.training else {}
        if state == "complete" and event.value is not None and self._leads(event.value):
            self._best = BestTrial(event.trial, event.value, params)

    def _leads(self, value: float) -> bool:
        if self._study is not None and self._study.objectives:
            # With several objectives no trial is the best one.
            return False
        if self._best is None:
            return value == value  # noqa: PLR0124 - NaN leads nothing
        if self._study is not None and self._study.direction == "minimize":
            return value < self._best.value
        return value > self._best.value

    def _trial(self, attempt: _Attempt, now: float) -> TrialProgress:
        training = attempt.training
        if training is None:
            return TrialProgress(
                attempt.trial, attempt.attempt, "preparing", {}, 0, 0, 0.0, {}, None, None, 0
            )
        finished = attempt.epochs_finished
        return TrialProgress(
            number=attempt.trial,
            attempt=attempt.attempt,
            phase="training",
            params=training.params,
            epoch=min(finished + 1, training.epochs),
            epochs=training.epochs,
            fraction=1.0 if finished >= training.epochs else attempt.fraction,
            metrics=attempt.metrics,
            rate=_rate(attempt),
            seconds_left=self._trial_left(attempt, now),
            resumed_at=training.start_step,
        )

    def _trial_left(self, attempt: _Attempt, now: float) -> float | None:
        """Return the epochs that are left, less the time since the last news of a step.

        Of that time one epoch's at most counts (a validation sends none): what stands still does
        not come closer to its end.
        """
        if attempt.training is None:
            return None
        per_epoch = self._epoch_seconds(attempt)
        if per_epoch is None:
            return None
        done = attempt.epochs_finished + attempt.fraction
        left = max(0.0, attempt.training.epochs - done) * per_epoch
        return max(0.0, left - min(now - attempt.stepped, per_epoch))

    def _epoch_seconds(self, attempt: _Attempt) -> float | None:
        if attempt.durations:
            return median(attempt.durations)
        if self._durations:
            return median(self._durations)
        rate = _rate(attempt)
        if rate is None or attempt.training is None or not attempt.training.steps_per_epoch:
            return None
        return attempt.training.steps_per_epoch / rate

    def _study_left(self, done: int, now: float) -> float | None:
        """Return the work that is left, shared out over the workers; at least the longest trial's.

        A trial that has not begun counts as the median one does that is complete or pruned, early
        stopping included, and until there is one as the study's number of epochs.
        """
        study = self._study
        if study is None:
            return None
        lefts = [self._trial_left(attempt, now) for attempt in self._running.values()]
        waiting = max(0, study.target - done - len(lefts))
        per_epoch = median(self._durations) if self._durations else None
        if waiting == 0 and not lefts:
            return 0.0
        if per_epoch is None:
            known = [left for left in lefts if left is not None]
            return max(known) if len(known) == len(lefts) and waiting == 0 else None
        epochs = median(self._epochs_run) if self._epochs_run else study.epochs
        overhead = median(self._overheads) if self._overheads else 0.0
        whole = epochs * per_epoch + overhead
        running = [whole if left is None else left for left in lefts]
        width = max(1, min(study.workers, waiting + len(running)))
        longest = max([*running, whole if waiting else 0.0])
        return max(longest, (sum(running) + waiting * whole) / width)


def _rate(attempt: _Attempt) -> float | None:
    if len(attempt.samples) < 2:
        return None
    (began, first), (ended, last) = attempt.samples[0], attempt.samples[-1]
    if ended - began < LEAST_WINDOW or last <= first:
        return None
    return (last - first) / (ended - began)
