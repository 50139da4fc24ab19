"""Building of a model's variables, metrics and optimizer before its step is traced or first run.

A traced step creates every variable before training begins. A step that runs eagerly creates them
when it first runs: a resumed training takes one step for that, and what the step changed is then
restored with everything else.

TensorFlow traces a function twice when the first trace creates variables, and a trace is the
longest part of a short trial's start. Keras can create these variables from shapes alone, and a
`TrainingStep` tells what its optimizer trains; where neither is so (a model that is built by its first
batch, a ``train_step`` of the user's own), nothing is done here, and the trace creates them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.inspection.sorts import class_name
from sweeper.train.replicas import replicated
from sweeper.train.state.variables import Reach
from sweeper.train.step import TrainingStep

_LOG = logging.getLogger(__name__)

_NOT_FROM_SHAPES = (ValueError, TypeError, RuntimeError)
"""Errors that Keras raises if shapes and dtypes are wrong or insufficient."""


def build_before_tracing(model: keras.Model, arrays: Any, step: TrainingStep | None = None) -> None:
    """Create the variables of the model's compiled metrics and of its optimizer, if it is built.

    Where Keras cannot, the reason is logged and the trace creates them; any other error, such as
    one in a metric of the user's, is raised.

    Args:
        model: A compiled model.
        arrays: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``; only shapes and types are read.
            None where they are not known.
        step: What is taken instead of the model's own step, if anything is.
    """
    if model._distribute_strategy is not None:
        _build_in_scope(model, arrays)
        _refuse_unbuilt(model, step)
        return
    if arrays is None:
        return
    if model.run_eagerly or not all(layer.built for layer in model._flatten_layers()):
        return
    if step is not None and not step.is_keras_own:
        _build_optimizer_of(step)
        return
    if type(model).train_step is not keras.Model.train_step:
        return
    batch = tf.nest.map_structure(lambda array: None if array is None else array[:2], arrays)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return
    # What is wrong with shapes or types is for the trace to say: it sees whole batches.
    try:
        model._symbolic_build(data_batch=(x, y, sample_weight))
    except _NOT_FROM_SHAPES as error:
        _LOG.debug("%r is built by its trace, not from shapes: %s", model.name, error)


def _build_optimizer_of(step: TrainingStep) -> None:
    """Create the slots that the step's first trace would create."""
    if step._overrides("train_step", "trainable_variables", "update"):
        return
    # What is frozen now, a method of the step may free before its gradients are applied.
    if not all(layer.trainable for layer in step.model._flatten_layers()):
        return
    optimizer, variables = step.optimizer, step.trainable_variables()
    if variables and not optimizer.built:
        optimizer.build(variables)


def _build_in_scope(model: keras.Model, arrays: Any) -> None:
    """Create variables in the scope of the model's strategy, as ``fit`` does.

    A trace would create an optimizer's slots on one replica only, and outside the scope nothing is
    created at all.
    """
    with model.distribute_strategy.scope():
        if arrays is not None:
            batch = tf.nest.map_structure(lambda a: None if a is None else a[:2], arrays)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
            try:
                model._symbolic_build(data_batch=(x, y, sample_weight))
            except _NOT_FROM_SHAPES as error:
                _LOG.debug("%r is built by its trace, not from shapes: %s", model.name, error)
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built and model.trainable_variables:
            optimizer.build(model.trainable_variables)


def _refuse_unbuilt(model: keras.Model, step: TrainingStep | None) -> None:
    """Refuse optimizers whose slots a trace would make only on one replica.

    Raises:
        FactoryError: One is not built, and is named.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    for path, optimizer in Reach(model, step).optimizers():
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
    """Run ``train_step`` once, for the variables that it creates.

    Args:
        model: A compiled model that runs eagerly.
        train_step: Its own, or a `TrainingStep`'s.
        batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` of arrays.
    """

    def tensor(array: Any) -> Any:
        composite = isinstance(array, tf.SparseTensor | tf.RaggedTensor)
        return array if array is None or composite else tf.convert_to_tensor(array)

    tensors = tf.nest.map_structure(tensor, batch)
    on_replicas = replicated(model, train_step)
    if on_replicas is not None:
        on_replicas(tensors)
        return
    model.distribute_strategy.run(train_step, args=(tensors,))
