"""How fast running trials are, and how long they and their study will take.

Time left is estimated from medians of measured epochs rather than means: the first epoch of a trial
holds graph tracing, and one epoch during which the machine slept must not spoil the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from sweeper.events import EpochFinished, StudyOpened, TrainingStarted

RATE_WINDOW = 10.0
"""Seconds of steps behind the rate that is shown."""

LEAST_WINDOW = 0.2
"""Seconds of steps without which a rate would be noise."""

RECENT_EPOCHS = 9
"""A trial's latest epochs whose median says how long the next ones take."""

_RECENT = 50


def _recent() -> deque[float]:
    return deque(maxlen=_RECENT)


@dataclass
class Pace:
    """What a run's latest epochs and trials took.

    Attributes:
        epochs: Seconds of each.
        epochs_run: How many epochs each trial ran.
        overheads: Seconds of each trial outside of its epochs.
    """

    epochs: deque[float] = field(default_factory=_recent)
    epochs_run: deque[float] = field(default_factory=_recent)
    overheads: deque[float] = field(default_factory=_recent)

    def add(self, attempt: Attempt, now: float) -> None:
        """Note an attempt that has just ended its trial."""
        self.epochs_run.append(attempt.epochs_finished)
        if attempt.training is not None:
            self.overheads.append(max(0.0, now - attempt.began - attempt.trained))


@dataclass
class Attempt:
    """What is known of a running attempt.

    Attributes:
        began: By the model's clock.
        doing: What it does before its first step.
        stepped: When there was last news of a step.
        trained: Seconds in its finished epochs.
        epoch_began_at: The step at which its present epoch began.
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
        """Note that the first step is about to run."""
        self.training = event
        self.epochs_finished = event.start_epoch
        self.epoch_began_at = event.start_epoch * event.steps_per_epoch
        self.stepped_to(event.start_step, now)

    def stepped_to(self, step: int, now: float) -> None:
        """Training has come this far."""
        self.step, self.stepped = step, now
        self._samples.append((now, step))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_WINDOW:
            self._samples.popleft()

    def finish_epoch(self, event: EpochFinished, now: float) -> None:
        """Note that an epoch is over, validation included."""
        self.metrics = dict(event.metrics)
        self.epochs_finished = event.epoch + 1
        self.epoch_began_at = event.step
        self._durations.append(event.seconds)
        self.trained += event.seconds
        self.stepped_to(event.step, now)

    @property
    def fraction(self) -> float:
        """Return how much of the epoch that has begun is done; 0 where its length is not known."""
        if self.training is None or self.training.steps_per_epoch == 0:
            return 0.0
        within = (self.step - self.epoch_began_at) / self.training.steps_per_epoch
        return min(1.0, max(0.0, within))

    @property
    def rate(self) -> float | None:
        """Steps per second over the last seconds; None where that is not known."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        if ended - began < LEAST_WINDOW or last <= first:
            return None
        return (last - first) / (ended - began)

    def seconds_left(self, pace: Pace, now: float) -> float | None:
        """Return the epochs that are left, less the time since the last news of a step.

        Of that time one epoch's at most counts (a validation sends none): what stands still does
        not come closer to its end.
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
    """Return the work that is left, shared out over the workers; at least the longest trial's.

    A trial that has not begun counts as the median one does that is complete or pruned, early
    stopping included, and until there is one as the study's number of epochs.
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
