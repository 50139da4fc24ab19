"""Plan of a training, its observer with the schedule of its checkpoints, and the roots of its objects."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from sweeper.checkpoint.format import Snapshot
from sweeper.checkpoint.writer import BackgroundWriter
from sweeper.declarations.checkpointing import CheckpointEvery, Every
from sweeper.declarations.searching import NonFinite
from sweeper.declarations.warm_start import WarmStart
from sweeper.records.results import EpochRecord
from sweeper.train.data import Data, DataSource, PartName
from sweeper.train.sources.arrays import is_arrays
from sweeper.train.state.callbacks import has_own_state
from sweeper.train.state.state import ANOTHER_STUDY, Position
from sweeper.train.step import TrainingStep
from sweeper.train.userstate import EarlierTraining, Roots


class Stopped(Exception):  # noqa: N818 - an outcome, not a fault
    """Exception: training was stopped on request, after its snapshot was kept."""


class Paused(Stopped):
    """Exception: training pauses, after its snapshot was kept."""


_AUTO_SHARE = 0.01
"""Share of training time for checkpoints with ``"auto"``."""

_AUTO_LEAST_SECONDS = 1.0
"""Shortest interval with ``"auto"``, also for a model whose snapshots cost almost nothing."""


class Observer:
    """Observer of a training, which keeps its snapshots; base of those of trials and of `sweeper.fit`.

    With ``"auto"``, snapshots have the shortest interval that costs less than 1% of the training time.

    Attributes:
        writer: Writer of the snapshots; set before training starts.
        stalled_seconds: Seconds that training waited for the newest snapshot.
    """

    writer: BackgroundWriter
    stalled_seconds: float = 0.0

    def __init__(self, every: CheckpointEvery, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._step = self._epoch = 0
        self._at = self._asked_at = clock()
        self._cost = 0.0

    def started(self, position: Position, steps_per_epoch: int) -> None:
        """Receive the initial position, before the first step; ``steps_per_epoch`` is 0 if unknown."""
        del steps_per_epoch
        self._step = position.step
        self._epoch = position.epoch
        self._at = self._clock()

    def steps_done(self, position: Position) -> None:
        """Receive the position after a block of steps, and announce what was written meanwhile."""
        del position
        self.writer.poll()

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        """Receive an epoch's record and duration in seconds, after its validation and callbacks."""

    def steps_until_due(self, position: Position) -> int:
        """Return the number of steps before the next snapshot may be due; at least 1."""
        due = self._every.next_step(position.step) if isinstance(self._every, Every) else None
        return 1 << 30 if due is None else due - position.step

    def is_due(self, position: Position) -> bool:
        """Return whether a snapshot is due, never twice at a step; the time until `keep` is its cost."""
        self._asked_at = self._clock()
        step = position.step
        epoch = position.epoch
        if (step, epoch) == (self._step, self._epoch):
            return False
        since = self._asked_at - self._at
        if isinstance(self._every, Every):
            return self._every.due(
                step=step, epoch=epoch, last_step=self._step, last_epoch=self._epoch, since=since
            )
        return since >= max(_AUTO_LEAST_SECONDS, self._cost / _AUTO_SHARE)

    def keep(self, snapshot: Snapshot) -> None:
        """Pass ``snapshot`` to the writer, after the previous one has been written."""
        self.writer.submit(snapshot)
        self._step = snapshot.step
        self._epoch = snapshot.epoch
        self._at = self._clock()
        self.stalled_seconds = self._at - self._asked_at
        # One fast snapshot at most halves the estimate, because the next may wait for a slow write.
        self._cost = max(self.stalled_seconds, self._cost / 2)

    def stop_requested(self) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training.

    Attributes:
        objectives: Names of metrics that the logs must have.
        order_seed: Seed of the order of training data.
        tracked: Objects to capture beside the model, by name.
        output_only: Objects that only write; may grow during training. None without a trial.
        step: The training step, bound to the model; None for the model's own.
        warm_start: Initial values of the model's variables; None for those of the factory.
        judge: Called between epochs with all finished epochs; returns whether training ends there.
        directory: `Trial.directory`, a possible prefix of paths in the user's objects.
        pause_after: Number of epochs after which the training pauses, unless it ends; None for no pause.
        nonfinite: Whether a NaN or infinite loss or objective after an epoch ends the training.
        data_asked: Whether the data factory requested a parameter.
        cure: How changed code trains from the start, in errors.
        initial_epoch: Number of the first epoch, as in ``fit``.
        verbose: As in ``fit``; trials print no progress bar.
        earlier: The earlier training of the model in this process and the same directory, if there was one.
    """

    model: keras.Model
    data: Data
    callbacks: Sequence[keras.callbacks.Callback]
    epochs: int
    objectives: tuple[str, ...]
    order_seed: np.random.SeedSequence
    tracked: Mapping[str, Any] = field(default_factory=dict)
    judge: Callable[[Sequence[EpochRecord]], bool] | None = None
    output_only: Sequence[Any] | None = None
    step: TrainingStep | None = None
    warm_start: WarmStart | None = None
    pause_after: int | None = None
    nonfinite: NonFinite = "continue"
    directory: str = ""
    data_asked: bool = False
    cure: str = ANOTHER_STUDY
    initial_epoch: int = 0
    verbose: Any = 0
    earlier: EarlierTraining | None = None

    @property
    def trainer(self) -> keras.Model | TrainingStep:
        """Return the object with ``train_step`` and ``test_step``: the training step, or the model."""
        return self.model if self.step is None else self.step


def roots_of(plan: TrainingPlan, sources: Mapping[str, DataSource | None]) -> Roots:
    """Return the roots of ``plan``; ``sources`` are its data sources, ``train`` and ``validation``."""
    data = plan.data
    both = {"train": data.train, "validation": data.validation}
    read = {use: obj for use, obj in both.items() if not is_arrays(obj)}
    read_from = {u: source for u in read if (source := sources[u]) is not None}
    objects = (*plan.callbacks, *read.values(), *plan.tracked.values())
    return Roots(
        model=plan.model,
        callbacks=plan.callbacks,
        step=plan.step,
        tracked=plan.tracked,
        data=read,
        shown={use: str(PartName.of(data, use)) for use in read},
        read_ahead=frozenset(u for u, source in read_from.items() if source.reads_ahead),
        written={u: source.written for u, source in read_from.items()},
        exempt=[obj for obj in objects if has_own_state(obj)],
        output=plan.output_only,
        directory=plan.directory,
        earlier=plan.earlier,
    )
