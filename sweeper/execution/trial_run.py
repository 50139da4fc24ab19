"""One trial from its factories to its end, over a `Link`: the same in a process and inline.

The factories run in a fixed order, each from a seed of its own, so that one which draws another
random number changes nothing for the next. Then the newest whole checkpoint of any earlier attempt
is found, and training goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from sweeper.checkpoints.format import Committed, LoadedCheckpoint
from sweeper.checkpoints.policy import CheckpointEvery, parse_every
from sweeper.checkpoints.reading import load_newest, read_kept
from sweeper.checkpoints.store import open_store, sweep_leftovers
from sweeper.checkpoints.writer import BackgroundWriter
from sweeper.definition import StudyDefinition
from sweeper.errors import (
    CheckpointError,
    DataError,
    DefinitionError,
    FactoryError,
    ObjectiveError,
    ParameterError,
)
from sweeper.execution.channel import (
    Assignment,
    CheckpointCommitted,
    CheckpointDeleted,
    EpochsEnded,
    Finished,
    Judge,
    Link,
    PrunedHere,
    Started,
    StepsReached,
    StoppedHere,
    Suggest,
    Surroundings,
    Warned,
)
from sweeper.execution.replaying import KEEP_ALL, ReplaySchedule
from sweeper.independence.digests import shortened
from sweeper.independence.guard import Earlier, Guard
from sweeper.paths import Place, RemotePath, parse_place
from sweeper.results import EpochRecord
from sweeper.space import CategoricalChoice, Distribution
from sweeper.training.data import Data
from sweeper.training.fingerprint import take_fingerprint
from sweeper.training.keeping import SnapshotKeeper
from sweeper.training.loop import Stopped, TrainingLoop, TrainingPlan
from sweeper.training.randomness import TrialSeeds, seed_everything
from sweeper.training.state import Position, epochs_in
from sweeper.trial import Trial

__all__ = ["run_trial"]

_TELL_EVERY = 0.25
"""Seconds between two `StepsReached`."""


def run_trial(
    definition: StudyDefinition,
    assignment: Assignment,
    link: Link,
    earlier: Earlier | None = None,
) -> None:
    """Build, resume, train; the last message is `Finished` or `StoppedHere`.

    Args:
        definition: The study's.
        assignment: The trial.
        link: To the worker.
        earlier: What earlier trials of this process own; None in a process of the trial's own.

    Raises:
        SweeperError: The trial cannot be built or trained, or its checkpoints not written.
        Exception: Whatever the user's code raises.
    """
    seeds = TrialSeeds(assignment.seed, assignment.number)
    trial = _trial(assignment, seeds, link)
    plan = _plan(
        definition,
        assignment,
        trial,
        seeds,
        warn=lambda message: link.send(Warned(message)),
        earlier=earlier,
    )
    plan = replace(plan, judge=_judge(assignment, link))
    if assignment.rehearsal is not None:
        shorter = assignment.rehearsal
        plan = shortened(plan, shorter.epoch_steps, shorter.validation_steps)[0]
    seed_everything(seeds.child("training"))
    directories = [parse_place(directory) for directory in assignment.checkpoints]
    known = [place for place in map(parse_place, assignment.known) if _may_exist(place)]
    _sweep_leftovers(directories[:-1], link)
    loaded = load_newest(directories, lambda message: link.send(Warned(message)), known=known)
    replay = None if assignment.replay is None else ReplaySchedule(assignment.replay)
    observer = _TrialObserver(link, parse_every(assignment.checkpoint_every), replay)
    with BackgroundWriter(
        open_store(directories[-1], spool=Path(assignment.log).parent),
        definition.keep if replay is None else KEEP_ALL,
        observer.checkpoint_committed,
        observer.checkpoint_deleted,
        kept=read_kept(directories, known),
        trained_seconds=0.0 if loaded is None else loaded.trained_seconds,
    ) as writer:
        observer.writer = writer
        loop = TrainingLoop(plan, observer, lambda message: link.send(Warned(message)))
        link.send(Surroundings(_surroundings(definition, plan)))
        if loaded is not None:
            observer.resumed(loaded)
        try:
            end = loop.run(loaded)
        except Stopped:
            writer.close()
            link.send(StoppedHere(step=observer.committed_step))
            return
    value = _objective(loop, assignment.objective)
    digest = observer.committed_digest
    if loop.pruned:
        link.send(PrunedHere(step=end.step, epoch=end.epoch - 1, value=value, digest=digest))
        return
    further = tuple(_objective(loop, name) for name in assignment.further_objectives)
    link.send(Finished(step=end.step, value=value, digest=digest, further_values=further))


def _judge(assignment: Assignment, link: Link) -> Callable[[Sequence[EpochRecord]], bool] | None:
    """What asks the worker between two epochs; None, and no cost, without a pruner.

    After an epoch that did not report the objective there is no news, and so no question.
    """
    objective = assignment.objective

    def judge(epochs: Sequence[EpochRecord]) -> bool:
        if objective not in epochs[-1].metrics:
            return False
        answer = link.judge(
            Judge(tuple((e.epoch, e.metrics[objective]) for e in epochs if objective in e.metrics))
        )
        if answer.error is not None:
            raise DefinitionError(answer.error)
        return answer.prune

    return judge if assignment.pruning else None


def _surroundings(definition: StudyDefinition, plan: TrainingPlan) -> dict[str, Any]:
    factories = (definition.model, definition.data, definition.callbacks)
    given = [factory for factory in factories if factory is not None]
    return take_fingerprint(given, jit_compile=bool(plan.model.jit_compile)).to_json()


def _sweep_leftovers(directories: Sequence[Place], link: Link) -> None:
    """Remove what earlier attempts died over; what cannot be removed costs disk, not the trial."""
    for directory in directories:
        try:
            sweep_leftovers(directory)
        except CheckpointError as error:
            link.send(Warned(str(error)))


def _may_exist(place: Place) -> bool:
    """Whether a known checkpoint is worth a look: those on a disk are there, or elsewhere."""
    return isinstance(place, RemotePath) or place.is_dir()


def _trial(assignment: Assignment, seeds: TrialSeeds, link: Link) -> Trial:
    directory = Path(assignment.files)
    directory.mkdir(parents=True, exist_ok=True)

    def ask(name: str, distribution: Distribution) -> CategoricalChoice:
        answer = link.ask(Suggest(name, distribution))
        if answer.error is not None:
            raise ParameterError(answer.error)
        return answer.value

    return Trial(number=assignment.number, seed=seeds.root, directory=directory, ask=ask)


def _plan(
    definition: StudyDefinition,
    assignment: Assignment,
    trial: Trial,
    seeds: TrialSeeds,
    *,
    warn: Callable[[str], None] = lambda _message: None,
    earlier: Earlier | None = None,
) -> TrainingPlan:
    """Run the factories, each result under guard."""
    factories = (definition.model, definition.data, definition.callbacks)
    with Guard(trial=assignment.number, warn=warn, earlier=earlier, factories=factories) as guard:
        seed_everything(seeds.child("model"))
        with guard.building("model", definition.model):
            model = definition.model(trial)
        if not isinstance(model, keras.Model):
            msg = (
                f"the model factory {_name(definition.model)} returned {_what(model)}; expected a "
                "compiled keras.Model (does it end with `return model`?)"
            )
            raise FactoryError(msg)
        guard.check("model", model)
        seed_everything(seeds.child("data"))
        with guard.building("data", definition.data):
            data = definition.data(trial)
        if not isinstance(data, Data):
            msg = (
                f"the data factory {_name(definition.data)} returned {_what(data)}; expected "
                "sweeper.Data(train=(x, y), validation=(x_val, y_val), batch_size=…)"
            )
            raise DataError(msg)
        guard.check("data", data)
        seed_everything(seeds.child("callbacks"))
        callbacks = _callbacks(definition, trial, guard)
        guard.check("callbacks", callbacks)
        guard.check("tracked", trial.tracked)
    return TrainingPlan(
        model=model,
        data=data,
        callbacks=tuple(callbacks),
        epochs=assignment.epochs,
        objective=assignment.objective,
        further_objectives=assignment.further_objectives,
        order_seed=seeds.sequence("order"),
        tracked=trial.tracked,
    )


def _callbacks(
    definition: StudyDefinition, trial: Trial, guard: Guard
) -> Sequence[keras.callbacks.Callback]:
    if definition.callbacks is None:
        return []
    with guard.building("callbacks", definition.callbacks):
        callbacks: Any = definition.callbacks(trial)
    if not isinstance(callbacks, list | tuple) or not all(
        isinstance(callback, keras.callbacks.Callback) for callback in callbacks
    ):
        name = _name(definition.callbacks)
        msg = f"the callbacks factory {name} returned {callbacks!r}; expected a list of callbacks"
        raise FactoryError(msg)
    return callbacks


class _TrialObserver(SnapshotKeeper):
    """Tells the worker what the training loop tells, and keeps the snapshots it hands over."""

    def __init__(
        self, link: Link, every: CheckpointEvery, replay: ReplaySchedule | None = None
    ) -> None:
        super().__init__(every)
        self._link = link
        self._replay = replay
        self._told = 0.0
        self._trained_seconds = 0.0
        self._committed: Committed | None = None

    @property
    def committed_step(self) -> int:
        return 0 if self._committed is None else self._committed.step

    @property
    def committed_digest(self) -> str:
        return "" if self._committed is None else self._committed.digest

    def steps_until_due(self, position: Position) -> int:
        if self._replay is not None:
            return self._replay.steps_left(position.step)
        return super().steps_until_due(position)

    def is_due(self, position: Position) -> bool:
        if self._replay is not None:
            return self._replay.is_due(position.step, position.epoch)
        return super().is_due(position)

    def started(self, position: Position, steps_per_epoch: int) -> None:
        self.begin(position)
        self._link.send(
            Started(position.step, position.epoch, steps_per_epoch, self._trained_seconds)
        )

    def resumed(self, loaded: LoadedCheckpoint) -> None:
        """Tell again what the checkpoint knows: the worker may have died before writing it down."""
        self._trained_seconds = loaded.trained_seconds
        self.checkpoint_committed(
            Committed(loaded.step, loaded.epoch, loaded.digest, loaded.bytes, loaded.path)
        )
        epochs = epochs_in(loaded)
        if epochs:
            self._link.send(EpochsEnded(epochs=epochs, step=loaded.step))

    def steps_done(self, position: Position) -> None:
        self.writer.poll()
        if self._replay is not None:
            self._replay.die_if_due(position.step, self.writer.flush)
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY:
            self._told = now
            self._link.send(StepsReached(epoch=position.epoch, step=position.step))

    def epoch_ended(self, epoch: int, step: int, logs: Mapping[str, float], seconds: float) -> None:
        record = EpochRecord(epoch, dict(logs))
        self._link.send(EpochsEnded(epochs=(record,), step=step, seconds=seconds))

    def stop_requested(self) -> bool:
        return self._link.stop_requested()

    def checkpoint_committed(self, committed: Committed) -> None:
        self._committed = committed
        self._link.send(
            CheckpointCommitted(
                step=committed.step,
                epoch=committed.epoch,
                digest=committed.digest,
                bytes=committed.bytes,
                path=str(committed.path),
            )
        )

    def checkpoint_deleted(self, path: Place) -> None:
        self._link.send(CheckpointDeleted(path=str(path)))


def _objective(loop: TrainingLoop, objective: str) -> float:
    values = loop.history.history.get(objective)
    if not values:
        reported = ", ".join(map(repr, sorted(loop.history.history)))
        msg = f"the objective {objective!r} was never reported; the epochs reported {reported}"
        raise ObjectiveError(msg)
    return float(values[-1])


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))


def _what(value: object) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
