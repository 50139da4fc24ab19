"""Plan of a training: model, data and callbacks, its observer, and the roots of its objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np

from sweeper.checkpoint.format import Snapshot
from sweeper.records.results import EpochRecord
from sweeper.spec.searching import NonFinite
from sweeper.spec.warm_start import WarmStart
from sweeper.train.codec import tells_its_state
from sweeper.train.data import Data, DataSource
from sweeper.train.sources.arrays import is_arrays
from sweeper.train.state.state import Position
from sweeper.train.step import TrainingStep
from sweeper.train.userstate import Roots


class Stopped(Exception):  # noqa: N818 - an outcome, not a fault
    """Exception: training was stopped on request, and its snapshot passed on."""


class Paused(Stopped):
    """Exception: training pauses, and its snapshot was passed on."""


class Observer(Protocol):
    """Observer of a training, which keeps its snapshots."""

    def started(self, position: Position, steps_per_epoch: int) -> None:
        """Called before the first step, at ``position``.

        ``steps_per_epoch`` is 0 where only an epoch's end tells how many steps it has.
        """
        ...

    def steps_done(self, position: Position) -> None:
        """Called after a block of steps."""
        ...

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        """Called after an epoch with its validation and callbacks, at ``step``, with its seconds."""
        ...

    def steps_until_due(self, position: Position) -> int:
        """Return the number of steps before the next snapshot may be due; at least 1."""
        ...

    def is_due(self, position: Position) -> bool:
        """Return whether a snapshot is due now."""
        ...

    def keep(self, snapshot: Snapshot) -> None:
        """Start writing the snapshot; it may be unfinished when this returns."""
        ...

    def stop_requested(self) -> bool:
        """Return whether training should stop at the next step."""
        ...


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training.

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

    @property
    def steps_of(self) -> keras.Model | TrainingStep:
        """Return the object with ``train_step`` and ``test_step``: the training step, or the model."""
        return self.model if self.step is None else self.step

    @property
    def beside(self) -> Mapping[str, Any]:
        """Return the tracked objects and the training step by name."""
        return self.tracked if self.step is None else {**self.tracked, "step": self.step}

    @property
    def objectives(self) -> tuple[str, ...]:
        """Return the names of the required metrics."""
        return (*(() if self.objective is None else (self.objective,)), *self.further_objectives)


_OF_KERAS = (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)


def roots_of(plan: TrainingPlan, sources: Mapping[str, DataSource | None]) -> Roots:
    """Return the roots of ``plan``, whose data are read by ``sources``, by use."""
    data = plan.data
    given = {"train": data.train, "validation": data.validation}
    read = {use: thing for use, thing in given.items() if not is_arrays(thing)}
    callbacks = [c for c in plan.callbacks if tells_its_state(c)]
    return Roots(
        model=plan.model,
        callbacks=plan.callbacks,
        step=plan.step,
        data=read,
        read_ahead=frozenset(u for u in read if getattr(sources[u], "reads_ahead", False)),
        written={u: getattr(sources[u], "written", {}) for u in read},
        # What is tracked by name is captured by name; layers and the like have attributes as well.
        exempt=(
            *callbacks,
            *(thing for thing in read.values() if tells_its_state(thing)),
            *(thing for thing in plan.tracked.values() if not isinstance(thing, _OF_KERAS)),
        ),
        output=plan.output_only,
        directory=plan.directory,
    )
