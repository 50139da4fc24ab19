"""Parts of a trial: its strategy, the `Trial` that its factories receive, and the resulting plan.

`sweeper check` trains a shortened form of the plan, and a run compares the validation samples of two trials.

The factories run in a fixed order, each from its own seed, so that the random numbers of one do not
affect the next.
"""

import difflib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from sweeper.declarations.budgets import rung_schedule
from sweeper.declarations.warm_start import pinned, warm_start_of
from sweeper.definition.definition import StudyDefinition
from sweeper.definition.trial import Trial
from sweeper.errors import CheckpointError, FactoryError, ParameterError
from sweeper.guard.factories import build, build_step
from sweeper.guard.guard import Guard, Process, name_of
from sweeper.inspection.code import strings_in
from sweeper.inspection.sorts import class_name
from sweeper.replay.reports import Lengths
from sweeper.run.protocol.channel import Link
from sweeper.run.protocol.messages import Assignment
from sweeper.train.data import Data
from sweeper.train.loop.logs import check_rungs
from sweeper.train.loop.plan import TrainingPlan
from sweeper.train.randomness.fresh_entropy import FreshEntropy, system_entropy
from sweeper.train.randomness.generators import RecordedState, process_generators
from sweeper.train.randomness.seeds import TrialSeeds, seed_everything
from sweeper.train.replicas import check_strategy
from sweeper.train.sources.arrays import ArraySource, is_ragged
from sweeper.train.sources.opening import open_sources

_MADE: dict[tuple[str, ...], tf.distribute.Strategy] = {}
"""Strategies of this process that use collective ops, by their devices.

TensorFlow numbers collective ops from the same number for each strategy, and two ops with one number
and different shapes make all later ones fail. So trials that share a process share these strategies.
"""


@contextmanager
def strategy_scope(
    factory: Callable[[Trial], Any] | None,
    trial: Trial,
    seeds: TrialSeeds,
) -> Iterator[Any]:
    """Context manager for the scope of the strategy that ``factory`` creates for ``trial``; yields it, or None.

    Raises:
        FactoryError: The factory returned something else, or a strategy that is not supported.
    """
    if factory is None:
        yield None
        return
    seed_everything(seeds.child("strategy"))
    with FreshEntropy(seeds.sequence("strategy"), "strategy"), _without_tf_config():
        strategy = factory(trial)
    name = getattr(factory, "__qualname__", repr(factory))
    if not isinstance(strategy, tf.distribute.Strategy):
        returned = "None" if strategy is None else f"a {class_name(type(strategy))}"
        raise FactoryError(
            f"the strategy factory {name} returned {returned}; expected a tf.distribute.Strategy, such "
            'as tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])'
        )
    check_strategy(strategy)
    # There is no public name for the way in which a strategy adds the replicas' gradients.
    adding = getattr(strategy.extended, "_cross_device_ops", None)
    if strategy.num_replicas_in_sync > 1 and type(adding).__name__ == "CollectiveAllReduce":
        strategy = _MADE.setdefault(tuple(strategy.extended.worker_devices), strategy)
    with strategy.scope():
        yield strategy


def check_made_in(strategy: Any, model: keras.Model, factory: str) -> None:
    """Check that a model was made in the scope of the study's strategy, which is None if there is none.

    Otherwise the model would train on one device, or on those of another strategy.
    """
    # The public `distribute_strategy` is that of the current scope.
    model_strategy = model._distribute_strategy
    if strategy is None or model_strategy is strategy:
        return
    where = "outside every scope"
    if model_strategy is not None:
        where = f"in the scope of another strategy, a {type(model_strategy).__name__}"
    raise FactoryError(
        f"the model factory {factory} returned model {model.name!r}, which was made {where}; with "
        "Study(strategy=…) the factory runs in the scope of the study's "
        f"{type(strategy).__name__}: make the model in that scope, and enter no other"
    )


@contextmanager
def _without_tf_config() -> Iterator[None]:
    """Context manager without the environment variable that names the processes of a TensorFlow cluster.

    Strategies over several processes are refused. With the variable, creating one would first wait
    for the other processes, which do not exist.
    """
    value = os.environ.pop("TF_CONFIG", None)
    try:
        yield
    finally:
        if value is not None:
            os.environ["TF_CONFIG"] = value


def seeds_of(assignment: Assignment) -> TrialSeeds:
    settings = assignment.settings
    number = assignment.number
    position = settings.repeating.seed_position(number, assignment.proposals)
    return TrialSeeds(settings.seed, position)


def make_trial(assignment: Assignment, seeds: TrialSeeds, link: Link) -> Trial:
    """Return the `Trial` for the factories, and create its directory."""
    directory = Path(assignment.files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"the trial's directory {directory} cannot be made: {error}; check the disk, then resume"
        ) from error
    return Trial(
        number=assignment.number,
        seed=seeds.root,
        directory=directory,
        ask=link.suggest,
        repeat=assignment.settings.repeating.repeat_of(assignment.number),
        run_id=assignment.run_id,
    )


def check_enqueued(assignment: Assignment, trial: Trial, definition: StudyDefinition) -> None:
    """Refuse an enqueued name that no trial suggests, if another value was drawn in its place.

    A name in the code of the factories, or of another trial, belongs to another branch.

    Raises:
        ParameterError: The name is probably misspelt.
    """
    enqueued = assignment.enqueued
    suggested = trial.params
    drawn = [name for name in suggested if name not in enqueued]
    unused = [n for n, elsewhere in enqueued.items() if n not in suggested and not elsewhere]
    if not drawn or not unused:
        return
    in_code = strings_in(definition.factories())
    for name in unused:
        # Of f"units_{n}" the code has only "units_".
        if in_code.isdisjoint((name, name.rstrip("0123456789"))):
            near = difflib.get_close_matches(name, drawn, n=1)
            meant = f": did you mean {near[0]!r}?" if near else "."
            number = assignment.settings.repeating.index_of(assignment.number)
            raise ParameterError(
                f"enqueue[{number}] gives {name!r}, which no factory suggests{meant} The trial drew "
                f"{', '.join(map(repr, drawn))} instead; correct the name, or remove it"
            )


@contextmanager
def _explaining_repeats(assignment: Assignment) -> Iterator[None]:
    """Context manager that adds the trial's repeat to an `IndexError`, as of too few splits of data."""
    try:
        yield
    except IndexError as error:
        repeating = assignment.settings.repeating
        if not repeating.is_single:
            repeat = repeating.repeat_of(assignment.number)
            many = f"the study has {repeating.repeats} repeats"
            if repeating.confirmed:
                many = "a confirmation counts its repeats from 0 too, up to --repeats or --at-most"
            error.args = (f"{error}; here trial.repeat is {repeat}: {many}",)
        raise


def make_plan(
    definition: StudyDefinition,
    assignment: Assignment,
    trial: Trial,
    seeds: TrialSeeds,
    *,
    notify: Callable[[str], None] = lambda _message: None,
    report_stage: Callable[[str], None] = lambda _stage: None,
    process: Process = "trial",
) -> TrainingPlan:
    """Run the factories under guard, and return the plan of the training.

    ``notify`` receives warnings to the user, and ``report_stage`` the next activity.
    """
    factories = definition.factories()
    settings = assignment.settings
    schedule = rung_schedule(settings.budget, settings.epochs)
    with (
        _explaining_repeats(assignment),
        Guard(notify=notify, process=process, factories=factories) as guard,
        strategy_scope(definition.strategy, trial, seeds) as strategy,
    ):
        report_stage("building the model")
        model: keras.Model = build("model", definition.model, trial, seeds, guard)
        check_made_in(strategy, model, name_of(definition.model))
        step = build_step(definition.step, model, trial, seeds, guard)
        report_stage("making the data")
        asks = trial.asks
        data: Data = build("data", definition.data, trial, seeds, guard)
        asked = trial.asks > asks
        check_rungs(() if schedule is None else schedule.rungs, settings.objective, data)
        callbacks = build("callbacks", definition.callbacks, trial, seeds, guard) or ()
        for callback in callbacks:
            if any(callback is output for output in trial.output):
                _draw_apart(callback)
        guard.check("tracked", trial.tracked)
        seed_everything(seeds.child("warm_start"))
        with FreshEntropy(seeds.sequence("warm_start"), "warm_start"):
            warm_start = warm_start_of(definition.warm_start, trial)
    return TrainingPlan(
        directory=assignment.files,
        model=model,
        data=data,
        callbacks=tuple(callbacks),
        epochs=settings.epochs,
        objectives=tuple(objective.name for objective in settings.objectives),
        order_seed=seeds.sequence("order"),
        tracked=trial.tracked,
        output_only=trial.output,
        step=step,
        warm_start=pinned(warm_start, str((settings.warm_start or {}).get("digest", ""))),
        pause_after=assignment.pause_after,
        nonfinite=definition.nonfinite,
        data_asked=asked,
    )


def _draw_apart(callback: keras.callbacks.Callback) -> None:
    """Have the hooks of a callback that only writes output take no random numbers of the trial's.

    A tracker draws ids and delays, in each attempt and in no replay.
    """

    def apart(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        with RecordedState(process_generators()), system_entropy():
            hook(*args, **kwargs)

    for name in dir(type(callback)):
        hook = getattr(callback, name) if name.startswith("on_") else None
        # Keras marks the hooks of its base class, and skips batches that none of another class sees.
        if hook is not None and not getattr(hook, "_is_default", False):
            setattr(callback, name, functools.partial(apart, hook))


_MOST_STEPS = 60
"""Steps of an epoch above which it is shortened."""

_SHORT_EPOCH = 6
_MOST_VALIDATION = 24
_SHORT_VALIDATION = 4
_WORD = (1 << 64) - 1


def shortened(plan: TrainingPlan) -> tuple[TrainingPlan, Lengths]:
    """Return the plan with shortened epochs, and how much longer the study's are.

    Some validation follows one of its epochs if one follows an epoch of the study.
    """
    # The training itself reports notices about the data.
    train, validation = open_sources(plan.data, plan.order_seed, lambda _: None)
    data = plan.data
    times = 1.0
    steps = data.steps_per_epoch or train.steps
    if steps is None or steps > _MOST_STEPS:
        data = replace(data, steps_per_epoch=_SHORT_EPOCH)
        times = (steps or 0) / _SHORT_EPOCH
    if validation is not None:
        if not any(map(data.validates_after, range(plan.epochs))):
            data = replace(data, validation_freq=1)
        batches = data.validation_steps or validation.steps
        if batches is None or batches > _MOST_VALIDATION:
            data = replace(data, validation_steps=_SHORT_VALIDATION)
            times = max(times, (batches or 0) / _SHORT_VALIDATION)
    return replace(plan, data=data), Lengths(steps, times)


def validation_rows(plan: TrainingPlan) -> str | None:
    """Return a digest of a plan's validation samples, which are arrays, independent of their order.

    None without a validation, or if the data are no arrays, or ragged.
    """
    _, source = open_sources(plan.data, plan.order_seed, lambda _: None)
    if not isinstance(source, ArraySource):
        return None
    arrays = [array for array in tf.nest.flatten(source.arrays) if array is not None]
    if any(map(is_ragged, arrays)):
        return None
    limit = plan.data.validation_steps
    samples = source.samples if limit is None else min(source.samples, limit * source.batch_size)
    digests = (
        xxhash.xxh3_64_intdigest(b"".join(map(_content, sample)))
        for sample in zip(*(array[:samples] for array in arrays), strict=True)
    )
    return f"{samples}:{sum(digests) & _WORD:x}"


def _content(part: Any) -> bytes:
    """Return the bytes of one sample of an array."""
    array = np.asarray(part)
    return repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
