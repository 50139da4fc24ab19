"""Checks of a model and its strategy: what cannot be trained on several replicas is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.train.codec import replicas_of
from sweeper.train.replicas.step import own_method
from sweeper.train.step import TrainingStep

_PROCESSES = (
    "a trial trains in one process; use tf.distribute.MirroredStrategy, which trains on all GPUs that the "
    "trial sees, and run other trials on other hosts (`sweeper worker`)"
)

_INSTEAD = {
    "MultiWorkerMirroredStrategy": _PROCESSES,
    "CollectiveAllReduceStrategy": _PROCESSES,
    "ParameterServerStrategy": (
        "its workers take steps at their own pace, so no step could be resumed exactly; use "
        "tf.distribute.MirroredStrategy"
    ),
    "CentralStorageStrategy": "use tf.distribute.MirroredStrategy, which keeps weights everywhere",
    "TPUStrategy": (
        "sweeper was never tested on a TPU; use tf.distribute.MirroredStrategy on GPUs"
    ),
}
"""Why a strategy is refused, and what to use; by the name of its class without ``V1`` or ``V2``."""


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy unless its replicas train in step, and all in this process.

    Raises:
        FactoryError: Names the strategy and says which one to use.
    """
    names = [cls.__name__.removesuffix("V1").removesuffix("V2") for cls in type(strategy).__mro__]
    found = next((name for name in names if name in _INSTEAD), None)
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if found is None and (mirrored or strategy.num_replicas_in_sync == 1):
        return
    why = _INSTEAD.get(found or "", "use tf.distribute.MirroredStrategy, which is supported")
    msg = f"the model's strategy is a {type(strategy).__name__}, which is not supported: {why}"
    raise FactoryError(msg)


def check_model(model: keras.Model, step: TrainingStep | None = None) -> str | None:
    """Refuse a model that its strategy's replicas would not train as one replica would.

    Args:
        model: Compiled.
        step: What is taken instead of the model's own step, if anything is.

    Returns:
        What the user should know; None where there is nothing.

    Raises:
        FactoryError: Says what of it cannot be, and what to do.
    """
    strategy = model.distribute_strategy
    check_strategy(strategy)
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return None
    where = f"on the {replicas} replicas of the {type(strategy).__name__}"
    for text in (*_outside(model, strategy), *_optimizer(model.optimizer)):
        msg = f"model {model.name!r} cannot be trained {where}: {text}"
        raise FactoryError(msg)
    if model.jit_compile:
        msg = (
            f"model {model.name!r} cannot be trained {where}: it is compiled with "
            "jit_compile=True, and XLA compiles for one device only; leave it out"
        )
        raise FactoryError(msg)
    own = own_method(model, "train_step") if step is None else ""
    if own:
        return (
            f"the model's own {own} runs {where}, each with its share of a batch, and gradients "
            f"are summed: divide the loss of a share by {replicas}, otherwise the training "
            "differs from that on one device; Keras's own steps and a TrainingStep do this by "
            "themselves"
        )
    return None


def describe_strategy(strategy: Any) -> str:
    """Return the strategy, its replicas and how they add up, for the record of what a trial ran on."""
    name, replicas = type(strategy).__name__, int(strategy.num_replicas_in_sync)
    if replicas == 1:
        return name
    adding = type(getattr(strategy.extended, "_cross_device_ops", None)).__name__
    return f"{name}, {replicas} replicas, {adding}"


def _outside(model: keras.Model, strategy: Any) -> Iterator[str]:
    """Yield the parts of the model that were made outside the strategy's scope."""
    advice = (
        "make the model, its layers and its optimizer inside strategy.scope(), as a study's factories "
        "do with Study(strategy=…)"
    )
    for variable in model.variables:
        if len(replicas_of(variable)) != strategy.num_replicas_in_sync:
            yield f"its variable {variable.path!r} was made outside the strategy's scope; {advice}"
    optimizer = model.optimizer
    if optimizer is not None and _strategy_of(optimizer) is not strategy:
        yield f"its optimizer was made outside the strategy's scope; {advice}"


def _strategy_of(optimizer: Any) -> Any:
    return getattr(optimizer, "_distribution_strategy", None)


def _optimizer(optimizer: Any) -> Iterator[str]:
    """Yield the settings of the optimizer that Keras 3 cannot train on replicas, where they fail inside a graph."""
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield (
            f"its optimizer is a {name}, and Keras does not sum gradients inside its condition; "
            "use the policy 'mixed_bfloat16', which needs no loss scaling"
        )
    if getattr(optimizer, "gradient_accumulation_steps", None):
        yield (
            f"its optimizer {name} has gradient_accumulation_steps, and Keras does not sum "
            "gradients inside its condition; use a larger batch_size, which replicas share"
        )
    if getattr(optimizer, "ema_overwrite_frequency", None):
        yield (
            f"its optimizer {name} has ema_overwrite_frequency, and Keras does not overwrite "
            "weights inside its condition; leave it out: the averages replace the weights when "
            "training ends"
        )
