"""What a training loop is given: what to train, and who watches it and keeps its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np

from sweeper.checkpoints.format import Snapshot
from sweeper.results import EpochRecord
from sweeper.training.data import Data
from sweeper.training.state import Position

__all__ = ["Observer", "Stopped", "TrainingPlan"]


class Stopped(Exception):  # noqa: N818 - an outcome, not a fault
    """Training was stopped on request, and its snapshot handed over."""


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

    def epoch_ended(self, epoch: int, step: int, logs: Mapping[str, float], seconds: float) -> None:
        """Epoch ``epoch`` (from 0) is over, validation and callbacks included."""
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
        judge: Asked between two epochs, with all that are over, whether training is to end there.
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

    @property
    def objectives(self) -> tuple[str, ...]:
        """All metrics that the logs must have."""
        return (*(() if self.objective is None else (self.objective,)), *self.further_objectives)
