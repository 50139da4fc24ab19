"""What a run looks like right now, computed from its events alone: no terminal, no real clock.

`ProgressModel` takes events and answers with a `Snapshot`, frozen, which a terminal or a notebook
draws. Durations come from an injected clock, so a test decides how fast time goes by.

Other workers may serve the same study. What they have done comes as `StudyCounted`, a little late,
and what this one does as its own events; each is at most what is true, so the larger holds.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeper.events import (
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
from sweeper.report.terminal.estimates import Attempt, Pace, study_seconds_left
from sweeper.results import BestTrial, Params, TrialState

MOST_LEADERS = 3
"""So many of the best trials are named."""

_RESULTS = ("complete", "pruned", "failed")


@dataclass(frozen=True, slots=True)
class TrialProgress:
    """One running trial, or one that is replayed.

    Attributes:
        phase: What it does until its first step, such as "preparing", then "training".
        epoch: The epoch it is in, from 1, as people count; 0 while it is being prepared.
        epochs: How many epochs the trial will run at most.
        step: Steps done within that epoch.
        steps: Steps of an epoch; 0 where only its end tells.
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
    step: int
    steps: int
    fraction: float
    metrics: Mapping[str, float]
    rate: float | None
    seconds_left: float | None
    resumed_at: int


@dataclass(frozen=True, slots=True)
class Verified:
    """How far a verification is: ``done`` of the trials have their verdict, ``alike`` hold."""

    done: int = 0
    alike: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """How far an evaluation is: ``done`` checkpoints are measured, ``passed_over`` cannot be.

    ``best`` leads so far, as the trial, its step and the value.
    """

    opened: EvaluationOpened
    done: int = 0
    passed_over: int = 0
    best: tuple[int, int, float] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole run at one moment.

    Attributes:
        study: The study as it was opened, or None before that. Of a verification, ``target`` are
            the trials to verify.
        done: Trials with a result (complete, pruned or failed), of earlier runs and other workers
            too. Of a verification, those with a verdict.
        pruned, failed: Of those.
        interrupted: Trials that can be resumed, and are not running.
        paused: Trials that are at a rung of the study's budget.
        waiting: Trials that have not begun.
        elsewhere: Trials that other workers run.
        running: The trials that run here, by number.
        seconds: Since the model was made.
        seconds_left: For the whole study, or None when not yet known.
        best: The study's leading trial, of earlier runs too.
        leaders: The first few, the best first.
        checkpoint: The newest one that was written in this run.
        stopping: What was said when the run was asked to stop; None before.
        killing: Whether its trials are ended at once.
        verified: Set where a study is verified.
        measured: Set where a study is evaluated.
        doing: What the run does before its first trial; None once there is one.
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
    """Keeps a run's state. Safe to use from several threads.

    Args:
        clock: Seconds from any origin, never falling. Default `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._study: StudyOpened | None = None
        self._counted: StudyCounted | None = None
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
        """Take one event in. Events of attempts that were never started are taken as they come."""
        with self._lock:
            self._apply(event, self._clock())

    def snapshot(self) -> Snapshot:
        """Return the run as it is now."""
        with self._lock:
            now = self._clock()
            study, attempts = self._study, [self._running[n] for n in sorted(self._running)]
            counts = self._counts()
            target = study.target if study else 0
            elsewhere = 0
            if self._counted is not None:
                elsewhere = max(0, self._counted.running - len(attempts))
            done = sum(counts[state] for state in _RESULTS)
            if self._verified is not None:
                done = self._verified.done
            begun = done + len(attempts) + counts["interrupted"] + counts["paused"] + elsewhere
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
        beside = frozenset() if before is None else before.branches
        own: Counter[str] = Counter(s for n, s in self._states.items() if n not in beside)
        if self._verified is not None or before is None:
            return own
        counts: Counter[str] = Counter()
        known = before.complete + before.pruned + before.failed
        for state in _RESULTS:
            earlier = getattr(before, state)
            if state == "complete":
                # Whoever opens a study may know the sum alone.
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
            # What cannot be measured at all is said before the rest begins.
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
        """Take ``trial`` among the leaders, where it belongs there."""
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
    """Return a verification as if its replays were trials of a study."""
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
