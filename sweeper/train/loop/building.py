"""Building of a model's variables, metrics and optimizer before its step is traced or first run.

Tracing creates all variables before training begins. But TensorFlow traces a function twice if the
first trace creates variables, and a trace is the longest part of a short trial's start. Keras can
create the variables from shapes alone, and a `TrainingStep` knows what its optimizer trains. Otherwise
(a model that is built by its first batch, a ``train_step`` of the user's own) the trace creates them.

A step that runs eagerly creates variables when it first runs. A resumed training therefore runs one
step, whose other changes the restore overwrites.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.inspection.sorts import class_name
from sweeper.train.data import Data, DataSource
from sweeper.train.loop.runners import make_runner
from sweeper.train.replicas import ReplicatedStep
from sweeper.train.state.variables import Reach
from sweeper.train.step import TrainingStep

_LOG = logging.getLogger(__name__)

_NOT_FROM_SHAPES = (ValueError, TypeError, RuntimeError)
"""Errors that Keras raises if shapes and dtypes are wrong or insufficient."""


def build_before_tracing(
    model: keras.Model, example: Any, step: TrainingStep | None = None
) -> None:
    """Create the variables of the model's compiled metrics and of its optimizer, if it is built.

    If Keras cannot, the reason is logged, and the trace creates them. Other errors, such as one in
    a metric of the user's, are raised. Of ``example``, a tuple of arrays, only shapes and dtypes are used.
    """
    arrays = example if isinstance(example, tuple) else None
    if model._distribute_strategy is not None:
        _build_in_scope(model, arrays)
        _refuse_unbuilt(model, step)
        return
    if arrays is None:
        return
    if model.run_eagerly or not all(layer.built for layer in model._flatten_layers()):
        return
    if step is not None and type(step) is not TrainingStep:
        _build_optimizer_of(step)
    elif type(model).train_step is keras.Model.train_step and (*arrays, None)[1] is not None:
        _build_from_shapes(model, arrays)


def _build_from_shapes(model: keras.Model, arrays: tuple[Any, ...]) -> None:
    batch = tf.nest.map_structure(lambda array: None if array is None else array[:2], arrays)
    # The trace reports wrong shapes and dtypes, because it has whole batches.
    try:
        model._symbolic_build(data_batch=keras.utils.unpack_x_y_sample_weight(batch))
    except _NOT_FROM_SHAPES as error:
        _LOG.debug("%r is built by its trace, not from shapes: %s", model.name, error)


def _build_optimizer_of(step: TrainingStep) -> None:
    """Create the slots that the step's first trace would create."""
    if step._overrides("train_step", "trainable_variables", "update"):
        return
    # A method of the step may unfreeze layers before it applies gradients.
    if not all(layer.trainable for layer in step.model._flatten_layers()):
        return
    optimizer, variables = step.optimizer, step.trainable_variables()
    if variables and not optimizer.built:
        optimizer.build(variables)


def _build_in_scope(model: keras.Model, arrays: Any) -> None:
    """Create variables in the scope of the model's strategy, as ``fit`` does.

    A trace would create an optimizer's slots on one replica only.
    """
    with model.distribute_strategy.scope():
        if arrays is not None:
            _build_from_shapes(model, arrays)
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def _refuse_unbuilt(model: keras.Model, step: TrainingStep | None) -> None:
    """Raise FactoryError for an optimizer whose slots a trace would create on one replica only."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    for found in Reach(model, step).now.optimizers:
        path, optimizer = found.path, found.value
        if optimizer.built:
            continue
        where = "on_bind() of the step" if path.startswith("step") else "the model factory"
        msg = (
            f"{path}, a {class_name(type(optimizer))}, is not built, and on the "
            f"{strategy.num_replicas_in_sync} replicas of the {type(strategy).__name__} its slots "
            "must exist before the first step: call its build(variables), with the variables "
            f"that it trains, in {where}, or use one optimizer"
        )
        raise FactoryError(msg)


def take_one_step(model: keras.Model, train_step: Callable[[Any], Any], batch: Any) -> None:
    """Run ``train_step`` of a model that runs eagerly once, for the variables that it creates."""

    def tensor(array: Any) -> Any:
        composite = isinstance(array, tf.SparseTensor | tf.RaggedTensor)
        return array if array is None or composite else tf.convert_to_tensor(array)

    ReplicatedStep(model, train_step)(tf.nest.map_structure(tensor, batch))


def create_variables_of_training(
    model: keras.Model, step: TrainingStep | None, data: Data, source: DataSource
) -> None:
    """Create the variables that only a training step creates: trace one, or run it if eager."""
    train_step = (model if step is None else step).train_step
    runner = make_runner(model, source, train_step, data.steps_per_epoch)
    build_before_tracing(model, runner.example(), step)
    runner.trace()
    if model.run_eagerly:
        take_one_step(model, train_step, runner.building_batch())
