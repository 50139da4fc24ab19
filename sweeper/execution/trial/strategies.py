"""A study's own distribution strategy: made first, before TensorFlow's first op, and its scope."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.inspection.sorts import class_name
from sweeper.training.randomness.fresh_entropy import FreshEntropy
from sweeper.training.randomness.seeds import TrialSeeds, seed_everything
from sweeper.training.replicas.checking import check_strategy
from sweeper.trial import Trial

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
        f"Study(strategy=…) the factory runs in the scope of the study's {type(strategy).__name__}: "
        "make the model in it, and enter no scope of its own"
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
    """The strategy, or the earlier one of this process that it must not be beside."""
    adding = getattr(strategy.extended, "_cross_device_ops", None)
    if strategy.num_replicas_in_sync == 1 or type(adding).__name__ != "CollectiveAllReduce":
        return strategy
    return _MADE.setdefault(tuple(strategy.extended.worker_devices), strategy)
