"""One trial from its factories to its end, over a `Link`: the same in a process and inline.

The factories run in a fixed order, each from a seed of its own, so that one which draws another
random number changes nothing for the next. Then the newest whole checkpoint of any earlier attempt
is found, and training goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from sweeper.checkpoints.format import LoadedCheckpoint
from sweeper.checkpoints.policy import parse_every
from sweeper.checkpoints.reading import load_newest, read_kept
from sweeper.checkpoints.store import open_store, sweep_leftovers
from sweeper.checkpoints.values import relocated
from sweeper.checkpoints.writer import BackgroundWriter, Store
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
    Finished,
    Judge,
    Link,
    PrunedHere,
    StoppedHere,
    Suggest,
    Surroundings,
    Warned,
)
from sweeper.execution.observing import TrialObserver
from sweeper.execution.pinning import AuditPins, PinningStore
from sweeper.execution.redirecting import redirect_files
from sweeper.execution.replaying import KEEP_ALL, ReplaySchedule
from sweeper.independence.digests import shortened
from sweeper.independence.guard import Earlier, Guard
from sweeper.independence.nondeterminism import system_randomness
from sweeper.paths import Place, RemotePath, leads_outside, parse_place
from sweeper.results import EpochRecord
from sweeper.space import CategoricalChoice, Distribution
from sweeper.training.data import Data
from sweeper.training.encoding.kinds import class_name
from sweeper.training.fingerprint import take_fingerprint
from sweeper.training.fresh_entropy import FreshEntropy
from sweeper.training.loop import Stopped, TrainingLoop, TrainingPlan
from sweeper.training.randomness import TrialSeeds, seed_everything
from sweeper.trial import Trial

__all__ = ["run_trial"]


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
    if assignment.number == 0:
        _warn_of_system_randomness(definition, plan, link)
    plan = replace(plan, judge=_judge(assignment, link))
    if assignment.rehearsal is not None:
        shorter = assignment.rehearsal
        plan = shortened(plan, shorter.epoch_steps, shorter.validation_steps)[0]
    if assignment.replay is not None and assignment.replay.aside:
        redirect_files(plan.callbacks, Path(assignment.files))
    seed_everything(seeds.child("training"))
    directories = [parse_place(directory) for directory in assignment.checkpoints]
    known = [parse_place(place) for place in assignment.known]
    _sweep_leftovers(directories[:-1], link)
    origin = assignment.origin
    if origin is not None:
        origin = origin.of(trial.params, str(trial.directory))
    loaded = load_newest(
        directories, lambda message: link.send(Warned(message)), known=known, origin=origin
    )
    loaded = _brought_here(loaded, str(trial.directory))
    replay = None if assignment.replay is None else ReplaySchedule(assignment.replay)
    pins = None if assignment.audit is None else AuditPins(assignment.audit, origin)
    observer = TrialObserver(
        link, parse_every(assignment.checkpoint_every), replay, pins=pins, epochs=assignment.epochs
    )
    store: Store = open_store(directories[-1], spool=Path(assignment.log).parent, origin=origin)
    if pins is not None:
        store = PinningStore(store, pins, elsewhere=isinstance(directories[-1], RemotePath))
    with (
        nullcontext() if pins is None else closing(pins),
        BackgroundWriter(
            store,
            definition.keep if replay is None else KEEP_ALL,
            observer.checkpoint_committed,
            observer.checkpoint_deleted,
            warn=lambda message: link.send(Warned(message)),
            kept=read_kept(directories, known, origin=origin),
            trained_seconds=0.0 if loaded is None else loaded.trained_seconds,
        ) as writer,
    ):
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
    exempted = sorted({class_name(type(thing)) for thing in plan.output_only})
    taken = take_fingerprint(given, jit_compile=bool(plan.model.jit_compile)).to_json()
    return {**taken, "output_only": exempted} if exempted else taken


def _warn_of_system_randomness(definition: StudyDefinition, plan: TrainingPlan, link: Link) -> None:
    """Said for the first trial alone: the others have the same code."""
    factories = (definition.model, definition.data, definition.callbacks)
    for each in system_randomness(*factories, plan.model, *plan.callbacks):
        link.send(
            Warned(
                f"{each} gives what no seed decides, another value in every process; whatever "
                "training takes from it is other when a trial is resumed. Draw from trial.seed"
            )
        )


def _sweep_leftovers(directories: Sequence[Place], link: Link) -> None:
    """Remove what earlier attempts died over; what cannot be removed costs disk, not the trial."""
    for directory in directories:
        try:
            if leads_outside(directory):
                link.send(
                    Warned(f"{directory} is, or lies in, a symbolic link; nothing is deleted there")
                )
                continue
            sweep_leftovers(directory)
        except CheckpointError as error:
            link.send(Warned(str(error)))


def _brought_here(loaded: LoadedCheckpoint | None, directory: str) -> LoadedCheckpoint | None:
    """The checkpoint with every path below the trial's directory brought to where that is now."""
    if loaded is None or loaded.origin is None or loaded.origin.directory == directory:
        return loaded
    return replace(loaded, state=relocated(loaded.state, loaded.origin.directory, directory))


def _trial(assignment: Assignment, seeds: TrialSeeds, link: Link) -> Trial:
    directory = Path(assignment.files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the trial's directory {directory} cannot be made: {error}; see to its disk, then resume"
        raise CheckpointError(msg) from error

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
        with _fresh(seeds, "model"), guard.building("model", definition.model):
            model = definition.model(trial)
        if not isinstance(model, keras.Model):
            msg = (
                f"the model factory {_name(definition.model)} returned {_what(model)}; expected a "
                "compiled keras.Model (does it end with `return model`?)"
            )
            raise FactoryError(msg)
        guard.check("model", model)
        seed_everything(seeds.child("data"))
        with _fresh(seeds, "data"), guard.building("data", definition.data):
            data = definition.data(trial)
        if not isinstance(data, Data):
            msg = (
                f"the data factory {_name(definition.data)} returned {_what(data)}; expected "
                "sweeper.Data(train=(x, y), validation=(x_val, y_val), batch_size=…)"
            )
            raise DataError(msg)
        guard.check("data", data)
        seed_everything(seeds.child("callbacks"))
        with _fresh(seeds, "callbacks"):
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
        output_only=trial.output,
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


def _objective(loop: TrainingLoop, objective: str) -> float:
    values = [e.metrics[objective] for e in loop.epochs if objective in e.metrics]
    if not values:
        reported = ", ".join(map(repr, sorted({n for e in loop.epochs for n in e.metrics})))
        msg = f"the objective {objective!r} was never reported; the epochs reported {reported}"
        raise ObjectiveError(msg)
    return values[-1]


def _fresh(seeds: TrialSeeds, factory: str) -> FreshEntropy:
    return FreshEntropy(seeds.sequence(factory), factory)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))


def _what(value: object) -> str:
    return "None" if value is None else f"a {type(value).__module__}.{type(value).__qualname__}"
