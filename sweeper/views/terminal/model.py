"""State of a run at one moment, computed from its events alone, and estimates of the time left.

`ProgressModel` receives events and returns frozen `Snapshot` objects, which a terminal or a
notebook draws. Durations come from an injected clock, for tests.

Other workers may serve the same study. Their progress arrives late as `StudyCounted`, and that of
this worker as its own events; neither counts too many, so the larger number is used.

Time left is estimated from medians of measured epochs instead of means, because a trial's first
epoch includes graph tracing, and the machine may sleep during another.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from sweeper.records.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointKept,
    CheckpointMeasured,
    Doing,
    EpochFinished,
    EvaluationOpened,
    Event,
    Notice,
    RungDecided,
    RunStopping,
    StepsDone,
    StudyCounted,
    StudyOpened,
    TrainingStarted,
    TrialVerified,
    VerificationOpened,
)
from sweeper.records.results import BestTrial, Params, TrialState

RATE_WINDOW = 10.0
"""Seconds over which the displayed rate is averaged."""

LEAST_WINDOW = 0.2
"""Seconds of steps below which no rate is displayed."""

RECENT_EPOCHS = 9
"""Number of a trial's latest epochs for the median."""

_RECENT = 50


def _recent() -> deque[float]:
    return deque(maxlen=_RECENT)


@dataclass
class Pace:
    """Durations of a run's latest epochs and trials.

    Attributes:
        epochs: Seconds of each.
        epochs_run: Number of epochs of each trial.
        overheads: Seconds of each trial outside of epochs.
    """

    epochs: deque[float] = field(default_factory=_recent)
    epochs_run: deque[float] = field(default_factory=_recent)
    overheads: deque[float] = field(default_factory=_recent)

    def add(self, attempt: Attempt, now: float) -> None:
        """Record an attempt that has ended its trial."""
        self.epochs_run.append(attempt.epochs_finished)
        if attempt.training is not None:
            self.overheads.append(max(0.0, now - attempt.began - attempt.trained))


@dataclass
class Attempt:
    """State of a running attempt.

    Attributes:
        began: Start by the model's clock.
        doing: Its activity before the first step.
        stepped: Time of the last reported step.
        trained: Seconds in its finished epochs.
        epoch_began_at: The step at which its current epoch began.
    """

    trial: int
    number: int
    began: float
    doing: str = "preparing"
    training: TrainingStarted | None = None
    step: int = 0
    stepped: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs_finished: int = 0
    trained: float = 0.0
    epoch_began_at: int = 0
    _durations: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPOCHS))
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def train(self, event: TrainingStarted, now: float) -> None:
        """Record that the first step is about to run."""
        self.training = event
        self.epochs_finished = event.start_epoch
        self.epoch_began_at = event.start_epoch * event.steps_per_epoch
        self.stepped_to(event.start_step, now)

    def stepped_to(self, step: int, now: float) -> None:
        """Record a step."""
        self.step, self.stepped = step, now
        self._samples.append((now, step))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_WINDOW:
            self._samples.popleft()

    def finish_epoch(self, event: EpochFinished, now: float) -> None:
        """Record the end of an epoch and its validation."""
        self.metrics = dict(event.metrics)
        self.epochs_finished = event.epoch + 1
        self.epoch_began_at = event.step
        self._durations.append(event.seconds)
        self.trained += event.seconds
        self.stepped_to(event.step, now)

    @property
    def fraction(self) -> float:
        """Return the finished fraction of the current epoch; 0 if its length is unknown."""
        if self.training is None or self.training.steps_per_epoch == 0:
            return 0.0
        within = (self.step - self.epoch_began_at) / self.training.steps_per_epoch
        return min(1.0, max(0.0, within))

    @property
    def rate(self) -> float | None:
        """Return steps per second over the last seconds; None if unknown."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if ended - began < LEAST_WINDOW or last <= first:
            return None
        return (last - first) / (ended - began)

    def seconds_left(self, pace: Pace, now: float) -> float | None:
        """Return the duration of the remaining epochs, less the time since the last reported step.

        At most one epoch's duration is subtracted, because a stalled trial does not progress.
        """
        if self.training is None:
            return None
        per_epoch = self._epoch_seconds(pace)
        if per_epoch is None:
            return None
        done = self.epochs_finished + self.fraction
        left = max(0.0, self.training.epochs - done) * per_epoch
        return max(0.0, left - min(now - self.stepped, per_epoch))

    def _epoch_seconds(self, pace: Pace) -> float | None:
        if self._durations:
            return median(self._durations)
        if pace.epochs:
            return median(pace.epochs)
        rate = self.rate
        if rate is None or self.training is None or not self.training.steps_per_epoch:
            return None
        return self.training.steps_per_epoch / rate


def study_seconds_left(
    study: StudyOpened | None, running: Sequence[Attempt], pace: Pace, done: int, now: float
) -> float | None:
    """Return the remaining work divided by the workers; at least that of the longest trial.

    A trial that has not begun counts as the median of complete and pruned trials, or as the study's
    number of epochs if there is none.
    """
    if study is None:
        return None
    lefts = [attempt.seconds_left(pace, now) for attempt in running]
    waiting = max(0, study.target - done - len(lefts))
    if waiting == 0 and not lefts:
        return 0.0
    if not pace.epochs:
        known = [left for left in lefts if left is not None]
        return max(known) if len(known) == len(lefts) and waiting == 0 else None
    epochs = median(pace.epochs_run) if pace.epochs_run else study.epochs
    overhead = median(pace.overheads) if pace.overheads else 0.0
    whole = epochs * median(pace.epochs) + overhead
    each = [whole if left is None else left for left in lefts]
    width = max(1, min(study.workers, waiting + len(each)))
    longest = max([*each, whole if waiting else 0.0])
    return max(longest, (sum(each) + waiting * whole) / width)


MOST_LEADERS = 3
"""Number of best trials that are named."""

_RESULTS = ("complete", "pruned", "failed")


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """A running trial or replay.

    Attributes:
        phase: Its activity before the first step, such as "preparing", then "training".
        epoch: Its current epoch, from 1; 0 before the first.
        epochs: The trial's maximum number of epochs.
        step: Finished steps of that epoch.
        steps: Steps of an epoch; 0 if unknown.
        fraction: Finished fraction of that epoch.
        metrics: Metrics of its latest finished epoch.
        rate: Steps per second over the last seconds; None if unknown.
        seconds_left: Seconds until the end of its last epoch; None if unknown.
        resumed_at: The step at which it resumed, or 0.
    """

    number: int
    attempt: int
    phase: str
    params: Params
    epoch: int
    epochs: int
    step: int
    steps: int
    fraction: float
    metrics: Mapping[str, float]
    rate: float | None
    seconds_left: float | None
    resumed_at: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Progress of a verification: numbers of trials with a verdict, and of equal ones."""

    done: int = 0
    alike: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """Progress of an evaluation: ``done`` checkpoints are measured, ``passed_over`` cannot be.

    ``best`` is the best so far: trial, step and value.
    """

    opened: EvaluationOpened
    done: int = 0
    passed_over: int = 0
    best: tuple[int, int, float] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a run at one moment.

    Attributes:
        study: The opened study; None before that. In a verification, its ``target`` is the number of
            trials to verify.
        done: Number of trials with a result (complete, pruned or failed), including earlier runs and
            other workers; in a verification, of trials with a verdict.
        pruned, failed: Numbers of those with these results.
        interrupted: Number of trials that will be resumed and do not run.
        paused: Number of trials at a rung of the study's budget.
        waiting: Number of trials that have not begun.
        elsewhere: Number of trials that run on other workers.
        running: The trials that run here, by number.
        seconds: Seconds since the model was created.
        seconds_left: Estimated seconds for the whole study; None if unknown.
        best: The study's best trial, including earlier runs.
        leaders: The best few trials, the best first.
        checkpoint: The newest checkpoint of this run.
        stopping: Message about the request to stop; None without one.
        killing: Whether the trials are being killed.
        verified: Progress of a verification; None otherwise.
        measured: Progress of an evaluation; None otherwise.
        doing: The run's activity before its first trial; None afterwards.
    """

    study: StudyOpened | None
    done: int
    pruned: int
    failed: int
    interrupted: int
    waiting: int
    elsewhere: int
    running: tuple[TrialProgress, ...]
    seconds: float
    seconds_left: float | None
    best: BestTrial | None
    leaders: tuple[BestTrial, ...] = ()
    checkpoint: CheckpointKept | None = None
    stopping: str | None = None
    killing: bool = False
    verified: Verified | None = None
    measured: Measured | None = None
    paused: int = 0
    doing: str | None = None


class ProgressModel:
    """State of a run, updated by events; safe for several threads.

    ``clock`` returns seconds from any origin and never falls.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._study: StudyOpened | None = None
        self._counted: StudyCounted | None = None
        self._elsewhere = 0
        self._most_here = 0
        self._running: dict[int, Attempt] = {}
        self._states: dict[int, TrialState] = {}
        self._resumed: set[int] = set()
        self._leaders: tuple[BestTrial, ...] = ()
        self._pace = Pace()
        self._checkpoint: CheckpointKept | None = None
        self._stopping: RunStopping | None = None
        self._verified: Verified | None = None
        self._measured: Measured | None = None
        self._doing: str | None = None

    def apply(self, event: Event) -> None:
        """Apply one event. Events of attempts without a start are accepted."""
        with self._lock:
            self._apply(event, self._clock())

    def snapshot(self) -> Snapshot:
        """Return the present state of the run."""
        with self._lock:
            now = self._clock()
            study, attempts = self._study, [self._running[n] for n in sorted(self._running)]
            counts = self._counts()
            target = study.target if study else 0
            elsewhere = self._elsewhere
            done = sum(counts[state] for state in _RESULTS)
            if self._verified is not None:
                done = self._verified.done
            begun = done + len(attempts) + counts["interrupted"] + counts["paused"] + elsewhere
            if study is not None and begun > target and self._verified is None:
                # Further rounds of a confirmation raise its total.
                study, target = replace(study, target=begun), begun
            return Snapshot(
                study=study,
                done=done,
                pruned=counts["pruned"],
                failed=counts["failed"],
                interrupted=counts["interrupted"],
                paused=counts["paused"],
                waiting=max(0, target - begun),
                elsewhere=elsewhere,
                running=tuple(_trial(attempt, self._pace, now) for attempt in attempts),
                seconds=now - self._began,
                seconds_left=study_seconds_left(study, attempts, self._pace, done, now),
                best=self._leaders[0] if self._leaders else None,
                leaders=self._leaders,
                checkpoint=self._checkpoint,
                stopping=None if self._stopping is None else self._stopping.message,
                killing=self._stopping is not None and self._stopping.at_once,
                verified=self._verified,
                measured=self._measured,
                doing=self._doing,
            )

    def _counts(self) -> Counter[str]:
        """Count the trials by state, of earlier runs, of this one and of other workers."""
        before, counted = self._study, self._counted
        own: Counter[str] = Counter(self._states.values())
        if self._verified is not None or before is None:
            return own
        counts: Counter[str] = Counter()
        known = before.complete + before.pruned + before.failed
        for state in _RESULTS:
            earlier = getattr(before, state)
            if state == "complete":
                # `StudyOpened` may have only the sum.
                earlier += max(0, before.finished - known)
            elsewhere = 0 if counted is None else getattr(counted, state)
            counts[state] = max(earlier + own[state], elsewhere)
        left = max(0, before.interrupted - len(self._resumed))
        if counted is not None:
            left = min(left, counted.interrupted)
        counts["interrupted"] = left + own["interrupted"]
        counts["paused"] = before.paused + own["paused"] if counted is None else counted.paused
        return counts

    def _apply(self, event: Event, now: float) -> None:
        match event:
            case StudyOpened():
                self._study = event
                self._leaders = event.leaders or ((event.best,) if event.best else ())
            case VerificationOpened() | TrialVerified():
                self._verification(event)
            case EvaluationOpened() | CheckpointMeasured():
                self._evaluation(event)
            case StudyCounted():
                self._counted = event
                # It was counted since the last time, when up to so many of these were this worker's.
                self._elsewhere = max(0, event.running - self._most_here)
                self._most_here = len(self._running)
                if event.best is not None:
                    self._lead(event.best)
            case CheckpointKept():
                if event.seconds is not None:
                    self._checkpoint = event
            case Doing(trial=None):
                self._doing = event.what
            case Notice():
                self._noticed(event)
            case _:
                self._of_a_trial(event, now)

    def _noticed(self, event: Notice) -> None:
        if isinstance(event, RunStopping):
            self._stopping = event
        if isinstance(event, RungDecided):
            paused = [n for n in event.ended if self._states.get(n) == "paused"]
            self._states.update(dict.fromkeys(paused, "pruned"))

    def _of_a_trial(
        self,
        event: Doing | AttemptStarted | TrainingStarted | StepsDone | EpochFinished | AttemptEnded,
        now: float,
    ) -> None:
        match event:
            case Doing():
                self._attempt(event.trial or 0, now).doing = event.what
            case AttemptStarted():
                self._doing = None
                attempt = Attempt(event.trial, event.attempt, began=now)
                self._running[event.trial] = attempt
                self._most_here = max(self._most_here, len(self._running))
                if event.attempt > 1 and event.trial not in self._states:
                    self._resumed.add(event.trial)
                self._states[event.trial] = "running"
            case TrainingStarted():
                self._attempt(event.trial, now).train(event, now)
            case StepsDone():
                self._attempt(event.trial, now).stepped_to(event.step, now)
            case EpochFinished():
                self._attempt(event.trial, now).finish_epoch(event, now)
                self._pace.epochs.append(event.seconds)
            case AttemptEnded():
                self._ended(event, now)

    def _attempt(self, trial: int, now: float) -> Attempt:
        return self._running.setdefault(trial, Attempt(trial, 1, began=now))

    def _ended(self, event: AttemptEnded, now: float) -> None:
        attempt = self._running.pop(event.trial, None)
        state: TrialState = (
            event.outcome if event.outcome in (*_RESULTS, "paused") else "interrupted"  # type: ignore[assignment]
        )
        self._states[event.trial] = state
        if attempt is None or state not in ("complete", "pruned", "paused"):
            return
        self._pace.add(attempt, now)
        params = attempt.training.params if attempt.training else {}
        if state == "complete" and event.value is not None and self._verified is None:
            self._lead(BestTrial(event.trial, event.value, params))

    def _verification(self, event: VerificationOpened | TrialVerified) -> None:
        if isinstance(event, VerificationOpened):
            self._study, self._verified = _as_study(event), Verified()
            return
        if self._verified is None:
            return
        differs = event.verdict == "differs"
        self._verified = Verified(
            self._verified.done + 1,
            self._verified.alike + (not differs),
            self._verified.differing + differs,
        )

    def _evaluation(self, event: EvaluationOpened | CheckpointMeasured) -> None:
        if isinstance(event, EvaluationOpened):
            self._measured = Measured(event)
            return
        if self._measured is None:
            # The evaluation has not begun yet.
            return
        before, opened = self._measured, self._measured.opened
        value = None if event.metrics is None else event.metrics.get(opened.metric)
        best = before.best
        if value is not None and not math.isnan(value) and event.step is not None:
            sign = 1 if opened.direction == "minimize" else -1
            if best is None or sign * value < sign * best[2]:
                best = (event.trial, event.step, value)
        self._measured = Measured(
            opened,
            before.done + (event.metrics is not None),
            before.passed_over + (event.metrics is None),
            best,
        )

    def _lead(self, trial: BestTrial) -> None:
        """Add ``trial`` to the leaders, if it belongs there."""
        if self._study is not None and self._study.objectives:
            # With several objectives no trial is the best one.
            return
        if math.isnan(trial.value):
            return
        sign = 1 if self._study is not None and self._study.direction == "minimize" else -1
        others = [leader for leader in self._leaders if leader.number != trial.number]
        ranked = sorted([*others, trial], key=lambda t: (sign * t.value, t.number))
        self._leaders = tuple(ranked[:MOST_LEADERS])


def _as_study(event: VerificationOpened) -> StudyOpened:
    """Return a verification's progress in the form of a study's."""
    return StudyOpened(
        study=event.study,
        target=event.trials,
        finished=0,
        epochs=event.epochs,
        objective=event.objective,
        direction=event.direction,
        workers=event.workers,
        storage=event.storage,
        resume_command="",
    )


def _trial(attempt: Attempt, pace: Pace, now: float) -> TrialProgress:
    training = attempt.training
    finished = attempt.epochs_finished
    epochs = 0 if training is None else training.epochs
    over = training is not None and finished >= epochs
    steps = 0 if training is None else training.steps_per_epoch
    return TrialProgress(
        number=attempt.trial,
        attempt=attempt.number,
        phase=attempt.doing if training is None else "training",
        params={} if training is None else training.params,
        epoch=0 if training is None else min(finished + 1, epochs),
        epochs=epochs,
        step=steps if over else max(0, attempt.step - attempt.epoch_began_at),
        steps=steps,
        fraction=1.0 if over else attempt.fraction,
        metrics=attempt.metrics,
        rate=None if training is None else attempt.rate,
        seconds_left=attempt.seconds_left(pace, now),
        resumed_at=0 if training is None else training.start_step,
    )
