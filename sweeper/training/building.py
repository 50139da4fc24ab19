"""Building a compiled model's metrics and optimizer before its step is traced.

TensorFlow traces a function twice when the first trace creates variables, and a trace is the
longest part of a short trial's start. Keras can create these variables from shapes alone; where it
cannot (a model that is built by its first batch, a step of the user's own), nothing is done here,
and the trace creates them.
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

__all__ = ["build_before_tracing"]

_LOG = logging.getLogger(__name__)

_NOT_FROM_SHAPES = (ValueError, TypeError, RuntimeError)
"""What Keras raises where shapes and types are wrong, or do not tell enough."""


def build_before_tracing(model: keras.Model, arrays: Any) -> None:
    """Create the variables of the model's compiled metrics and of its optimizer, if it is built.

    Where Keras cannot, the reason is logged and the trace creates them; any other error, such as
    one in a metric of the user's, is raised.

    Args:
        model: A compiled model.
        arrays: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``; only shapes and types are read.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    if own_step or model.run_eagerly or not all(layer.built for layer in model._flatten_layers()):
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
