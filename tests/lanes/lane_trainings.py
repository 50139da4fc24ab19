"""Trainings as lanes of one scheduler, watched by observers that keep their snapshots."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from sweeper import Data
from sweeper.checkpoint.format import LoadedCheckpoint, Snapshot
from sweeper.checkpoint.reading import load_newest
from sweeper.checkpoint.store import CheckpointStore
from sweeper.lanes.block import FusedStep
from sweeper.lanes.runner import check_callbacks, runner_of
from sweeper.lanes.scheduler import Lane, LaneScheduler
from sweeper.records.results import EpochRecord
from sweeper.train.loop.loop import TrainingLoop
from sweeper.train.loop.plan import Stopped, TrainingPlan
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.state.state import Position

LANES = 4

GRAPHS: dict[str, FusedStep] = {}
"""Fused graphs, which tests share where how they are made is not what they look at."""


def samples(count: int = 70, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 8)).astype("float32")
    return x, generator.integers(0, 4, count)


def network(number: int) -> keras.Model:
    """Dropout, batch normalization and a penalty; each trial has another learning rate."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.001 * (1 + number)),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def arrays(number: int) -> Data:
    """The same samples for all trials; 70 in batches of 16 end with a partial one."""
    del number
    x, y = samples()
    return Data(train=(x, y), validation=(x[:21], y[:21]), batch_size=16)


def no_callbacks(number: int) -> list[Any]:
    del number
    return []


@dataclass
class Watcher:
    """Keeps every epoch's end, and the snapshots, unless the disk is full; stops where pending."""

    stop_at: int | None = None
    full: bool = False
    epochs: list[Mapping[str, float]] = field(default_factory=list)
    last: Snapshot | None = None
    step: int = 0

    def started(self, position: Position, steps_per_epoch: int) -> None:
        del steps_per_epoch
        self.step = position.step

    def steps_done(self, position: Position) -> None:
        self.step = position.step

    def epoch_ended(self, record: EpochRecord, step: int, seconds: float) -> None:
        del step, seconds
        self.epochs.append(dict(record.metrics))

    def steps_until_due(self, position: Position) -> int:
        if self.stop_at is None or position.step >= self.stop_at:
            return 1 << 30
        return self.stop_at - position.step

    def is_due(self, position: Position) -> bool:
        return position.step_in_epoch == 0

    def keep(self, snapshot: Snapshot) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.last = snapshot

    def stop_requested(self) -> bool:
        return self.stop_at is not None and self.step >= self.stop_at


@dataclass
class Outcome:
    """How a lane ended."""

    watcher: Watcher
    error: BaseException | None = None
    stopped: bool = False

    def tensors(self) -> dict[str, bytes]:
        """Every tensor of the last snapshot, its state, and the metrics of every epoch."""
        assert self.error is None, self.error
        assert self.watcher.last is not None
        found = {n: np.asarray(t).tobytes() for n, t in self.watcher.last.tensors.items()}
        return {
            **found,
            "state": self.watcher.last.state_json,
            "epochs": repr(self.watcher.epochs[-1:]).encode(),
        }


@dataclass(frozen=True)
class Trainings:
    """How a trial is made, whichever trials train beside it; which are pruned after an epoch, and
    which find the disk full."""

    model: Callable[[int], keras.Model] = network
    data: Callable[[int], Data] = arrays
    callbacks: Callable[[int], list[Any]] = no_callbacks
    epochs: int = 2
    pruned: tuple[int, ...] = ()
    full: tuple[int, ...] = ()
    shared: bool = True

    def lane(
        self,
        number: int,
        outcome: Outcome,
        loaded: LoadedCheckpoint | None = None,
    ) -> Callable[[Lane], None]:
        """What trial ``number`` does at its lane."""
        seeds = TrialSeeds(7, number)

        def train(lane: Lane) -> None:
            try:
                seed_everything(seeds.child("model"))
                model = self.model(number)
                callbacks = self.callbacks(number)
                check_callbacks(callbacks)
                plan = TrainingPlan(
                    model=model,
                    data=self.data(number),
                    callbacks=callbacks,
                    epochs=self.epochs,
                    objective=None,
                    order_seed=seeds.sequence("order"),
                    judge=lambda _epochs: number in self.pruned,
                    make_runner=runner_of(lane),
                )
                seed_everything(seeds.child("training"))
                TrainingLoop(plan, outcome.watcher).run(loaded)
            except Stopped:
                outcome.stopped = True
            except Exception as error:
                outcome.error = error

        return train

    def together(
        self,
        *numbers: int,
        stop_at: Mapping[int, int] | None = None,
        loaded: Mapping[int, LoadedCheckpoint] | None = None,
    ) -> dict[int, Outcome]:
        """Train these trials as lanes of one scheduler, and return how each ended."""
        scheduler = LaneScheduler(LANES)
        if self.shared:
            scheduler._graphs = GRAPHS
        outcomes = {n: Outcome(Watcher((stop_at or {}).get(n), n in self.full)) for n in numbers}
        for number in numbers:
            scheduler.add(
                number % LANES, self.lane(number, outcomes[number], (loaded or {}).get(number))
            )
        scheduler.run()
        return outcomes


def loaded_from(outcome: Outcome, directory: Path) -> LoadedCheckpoint:
    """The last snapshot of a lane, written and read again."""
    assert outcome.watcher.last is not None
    CheckpointStore(directory).commit(outcome.watcher.last)
    loaded = load_newest([directory], print)
    assert loaded is not None
    return loaded
