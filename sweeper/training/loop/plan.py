"""What a training loop is given: what to train, and who watches it and keeps its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np

from sweeper.checkpoints.format import Snapshot
from sweeper.declared.searching import NonFinite
from sweeper.results import EpochRecord
from sweeper.training.data import Data
from sweeper.training.sources.runner import Runner
from sweeper.training.state.state import Position
from sweeper.training.step import TrainingStep
from sweeper.training.warmstart.options import WarmStart


class Stopped(Exception):  # noqa: N818 - an outcome, not a fault
    """Training was stopped on request, and its snapshot handed over."""


class Paused(Stopped):
    """Training has come to where it pauses; its snapshot was handed over."""


class Observer(Protocol):
    """Who watches a training and keeps its snapshots."""

    def started(self, position: Position, steps_per_epoch: int) -> None:
        """The first step is about to run, at ``position``.

        ``steps_per_epoch`` is 0 where only an epoch's end tells how many steps it has.
        """
        ...

    def steps_done(self, position: Position) -> None:
        """A block of steps is over."""
        ...

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        """An epoch is over at ``step``, validation and callbacks included, after so many seconds."""
        ...

    def steps_until_due(self, position: Position) -> int:
        """Steps that may run before the next snapshot by steps is due; at least 1."""
        ...

    def is_due(self, position: Position) -> bool:
        """Whether a snapshot is due here."""
        ...

    def keep(self, snapshot: Snapshot) -> None:
        """Write it; it may still be on its way when this returns."""
        ...

    def stop_requested(self) -> bool:
        """Whether training should stop at the next step."""
        ...


@dataclass(frozen=True)
class TrainingPlan:
    """What to train.

    Attributes:
        objective: A metric that the logs must have, or None.
        order_seed: For the order of training data.
        tracked: Objects to capture beside the model, by name.
        further_objectives: Other metrics that the logs must have.
        output_only: Objects that only write; it may grow while training makes more.
        step: Takes the steps, bound to the model; None for the model's own.
        warm_start: What the model's variables begin with; None for what the factory gave them.
        judge: Asked between two epochs, with all that are over, whether training is to end there.
        directory: `Trial.directory`, which paths in the user's objects may begin with.
        pause_after: So many epochs after which it pauses, unless it ends there; None for nowhere.
        make_runner: Makes the runners in place of `make_runner`; None for one training alone.
        nonfinite: Whether a loss or objective that is NaN or infinite after an epoch ends it.
    """

    model: keras.Model
    data: Data
    callbacks: Sequence[keras.callbacks.Callback]
    epochs: int
    objective: str | None
    order_seed: np.random.SeedSequence
    tracked: Mapping[str, Any] = field(default_factory=dict)
    further_objectives: tuple[str, ...] = ()
    judge: Callable[[Sequence[EpochRecord]], bool] | None = None
    output_only: Sequence[Any] = ()
    step: TrainingStep | None = None
    warm_start: WarmStart | None = None
    pause_after: int | None = None
    nonfinite: NonFinite = "continue"
    directory: str = ""
    make_runner: Callable[..., Runner] | None = None

    @property
    def steps_of(self) -> keras.Model | TrainingStep:
        """Whose ``train_step`` and ``test_step`` are taken: the step's, or the model's own."""
        return self.model if self.step is None else self.step

    @property
    def beside(self) -> Mapping[str, Any]:
        """What is tracked, and the step, by name: all that is no model, data or callback."""
        return self.tracked if self.step is None else {**self.tracked, "step": self.step}

    @property
    def objectives(self) -> tuple[str, ...]:
        """All metrics that the logs must have."""
        return (*(() if self.objective is None else (self.objective,)), *self.further_objectives)
