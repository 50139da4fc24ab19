"""Parts of a trial: its strategy, the `Trial` that its factories receive, and the plan that they make.

The factories run in a fixed order, each from a seed of its own, so that one which draws another
random number changes nothing for the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from sweeper.definition.definition import StudyDefinition
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, FactoryError
from sweeper.guard.factories import build_callbacks, build_data, build_model, build_step
from sweeper.guard.guard import Earlier, Guard
from sweeper.guard.owned import name_of
from sweeper.inspection.sorts import class_name
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Assignment
from sweeper.spec.warm_start import pinned, warm_start_of
from sweeper.train.loop.logs import check_rungs
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.fresh_entropy import FreshEntropy
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.replicas import check_strategy

_MADE: dict[tuple[str, ...], tf.distribute.Strategy] = {}
"""Strategies of this process that add up by collective ops, by their devices.

TensorFlow numbers such ops for each strategy from the same number on, and two of one number that
differ in shape end the process's use of them: where trials share a process, they share these.
"""


@contextmanager
def strategy_scope(
    factory: Callable[[Trial], Any] | None,
    trial: Trial,
    seeds: TrialSeeds,
) -> Iterator[Any]:
    """Inside the scope of the strategy that ``factory`` makes for ``trial``.

    Args:
        factory: The study's; None for no strategy, and no scope.
        trial: What it is given.
        seeds: The trial's.

    Yields:
        The strategy, or None.

    Raises:
        FactoryError: It made something else, or a strategy that is not supported.
    """
    if factory is None:
        yield None
        return
    seed_everything(seeds.child("strategy"))
    with FreshEntropy(seeds.sequence("strategy"), "strategy"), _without_tf_config():
        strategy = factory(trial)
    name = getattr(factory, "__qualname__", repr(factory))
    if not isinstance(strategy, tf.distribute.Strategy):
        what = "None" if strategy is None else f"a {class_name(type(strategy))}"
        msg = (
            f"the strategy factory {name} returned {what}; expected a tf.distribute.Strategy, such "
            'as tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])'
        )
        raise FactoryError(msg)
    check_strategy(strategy)
    strategy = _of_this_process(strategy)
    with strategy.scope():
        yield strategy


def check_made_in(strategy: Any, model: keras.Model, factory: str) -> None:
    """Refuse a model that was made outside the scope of the study's strategy.

    Args:
        strategy: The study's; None where it has none.
        model: What the factory returned.
        factory: Its name.

    Raises:
        FactoryError: The model would train on one device, or on another strategy's.
    """
    # `distribute_strategy` would be the one of the scope that this is called in.
    own = model._distribute_strategy
    if strategy is None or own is strategy:
        return
    where = (
        "outside every scope"
        if own is None
        else f"in the scope of another strategy, a {type(own).__name__}"
    )
    msg = (
        f"the model factory {factory} returned model {model.name!r}, which was made {where}; with "
        "Study(strategy=…) the factory runs in the scope of the study's "
        f"{type(strategy).__name__}: make the model in that scope, and enter no other"
    )
    raise FactoryError(msg)


@contextmanager
def _without_tf_config() -> Iterator[None]:
    """Hide the variable by which a launcher names the processes of a cluster.

    A strategy over several processes that a factory makes is refused by name; with the variable it
    would wait for the others first, and there are none.
    """
    given = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if given is not None:
            os.environ["TF_CONFIG"] = given


def _of_this_process(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Return the strategy, or the earlier one of this process that it must not be beside."""
    adding = getattr(strategy.extended, "_cross_device_ops", None)
    if strategy.num_replicas_in_sync == 1 or type(adding).__name__ != "CollectiveAllReduce":
        return strategy
    return _MADE.setdefault(tuple(strategy.extended.worker_devices), strategy)


def seeds_of(assignment: Assignment) -> TrialSeeds:
    """Return the trial's seeds: of a branch its first ancestor's."""
    branch = assignment.branch
    return TrialSeeds(assignment.seed, assignment.number if branch is None else branch.seeded_as)


def make_trial(assignment: Assignment, seeds: TrialSeeds, link: Link) -> Trial:
    """Return the trial as its factories see it; its directory is there.

    Raises:
        CheckpointError: The directory cannot be made.
    """
    directory = Path(assignment.files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the trial's directory {directory} cannot be made: {error}; check the disk, then resume"
        raise CheckpointError(msg) from error

    return Trial(number=assignment.number, seed=seeds.root, directory=directory, ask=link.suggest)


def make_plan(
    definition: StudyDefinition,
    assignment: Assignment,
    trial: Trial,
    seeds: TrialSeeds,
    *,
    warn: Callable[[str], None] = lambda _message: None,
    tell: Callable[[str], None] = lambda _stage: None,
    earlier: Earlier | None = None,
) -> TrainingPlan:
    """Run the factories, each result under guard.

    Args:
        definition: The study's.
        assignment: The trial.
        trial: What the factories are given.
        seeds: The trial's.
        warn: Called with what the user should know.
        tell: Called with what is done next, before each part that may take long.
        earlier: What earlier trials of this process own.

    Raises:
        SweeperError: A factory returned what it may not.
        Exception: Whatever a factory raises.
    """
    factories = definition.makers()
    with (
        Guard(trial=assignment.number, warn=warn, earlier=earlier, factories=factories) as guard,
        strategy_scope(definition.strategy, trial, seeds) as strategy,
    ):
        tell("building the model")
        model = build_model(definition.model, trial, seeds, guard)
        check_made_in(strategy, model, name_of(definition.model))
        step = build_step(definition.step, model, trial, seeds, guard)
        tell("making the data")
        data = build_data(definition.data, trial, seeds, guard)
        check_rungs(assignment.rungs, assignment.objective, data)
        callbacks = build_callbacks(definition.callbacks, trial, seeds, guard)
        guard.check("tracked", trial.tracked)
        seed_everything(seeds.child("warm_start"))
        with FreshEntropy(seeds.sequence("warm_start"), "warm_start"):
            warm_start = warm_start_of(definition.warm_start, trial)
    return TrainingPlan(
        directory=assignment.files,
        model=model,
        data=data,
        callbacks=tuple(callbacks),
        epochs=assignment.epochs,
        objective=assignment.objective,
        further_objectives=assignment.further_objectives,
        order_seed=seeds.sequence("order"),
        tracked=trial.tracked,
        output_only=trial.output,
        step=step,
        warm_start=pinned(warm_start, assignment.warm_start),
        pause_after=assignment.pause_after,
        nonfinite=definition.nonfinite,
    )
