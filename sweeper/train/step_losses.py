"""Losses of examples and unscaled gradients, on any number of replicas.

In mixed precision the loss is scaled before it is differentiated, and each replica has the gradients of
its own share. Processing such as clipping needs unscaled gradients of the whole loss. Afterwards they are
converted to the form for the optimizer: scaled, and each replica's share of the sum.

All replicas have slices of equal size, so Keras's mean over a slice, divided by the number of replicas, is
the replica's share of the mean. Where not every example counts alike, `reduced` corrects that share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.losses.loss import reduce_weighted_values
from keras.src.trainers.compile_utils import get_loss

from sweeper.errors import FactoryError

MEAN = "sum_over_batch_size"


def unreduced(loss: Any, targets: Any, predictions: Any, names: Any) -> Any:
    """Return the unreduced values of a loss, or of a structure of losses like that of ``predictions``.

    Raises:
        FactoryError: The structures differ, or a loss is one number for a whole batch.
    """
    losses = for_each("loss=", loss, predictions, names)
    nested = targets if keras.tree.is_nested(targets) else [targets]
    given = for_each("the targets", nested, predictions, names)
    values = map(_values, losses, given, keras.tree.flatten(predictions))
    return keras.tree.pack_sequence_as(predictions, list(values))


def for_each(what: str, structure: Any, like: Any, names: Any) -> list[Any]:
    """Return the element of ``structure`` for each of ``like``; a single element is used for all.

    An output that a dict leaves out has None.

    Args:
        what: Description of ``structure``.
        structure: One element, or a list or dict of them.
        like: A tensor for each output of the model.
        names: Names of the outputs, which are keys of ``structure`` where ``like`` is a list.

    Raises:
        FactoryError: ``structure`` has others than ``like``.
    """
    if not keras.tree.is_nested(structure):
        return [structure] * len(keras.tree.flatten(like))
    keys = list(like) if isinstance(like, Mapping) else names or ()
    if isinstance(structure, Mapping) and set(structure) <= set(keys):
        complete = {key: structure.get(key) for key in keys}
        structure = complete if isinstance(like, Mapping) else list(complete.values())
    wanted, found = _paths(like), _paths(structure)
    if found != wanted and not len(found) == len(wanted) == 1:
        msg = (
            f"the losses are for the outputs {', '.join(wanted)}; {what} has {', '.join(found)}: give it "
            "the structure of the outputs, or override per_example_loss(targets, predictions)"
        )
        raise FactoryError(msg)
    flat: list[Any] = keras.tree.flatten(structure)
    return flat


def _paths(structure: Any) -> list[str]:
    paths = [path for path, _ in keras.tree.flatten_with_path(structure)]
    return [repr("/".join(map(str, path))) for path in paths]


def metrics_for_each(compiled: Any, structure: Any) -> list[Any]:
    """Return the metric in which Keras logs each loss of ``structure``, or None."""
    built = compiled is not None and compiled.built
    paths = [each.path for each in compiled._flat_losses] if built else []
    metrics = dict(zip(paths, compiled.metrics, strict=False)) if built else {}
    return [metrics.get(path) for path, _ in keras.tree.flatten_with_path(structure)]


def _values(loss: Any, targets: Any, predictions: Any) -> Any:
    resolved = get_loss(loss, targets, predictions)
    if resolved is None:
        return None
    before, resolved.reduction = resolved.reduction, None
    try:
        values = resolved(targets, predictions)
    finally:
        resolved.reduction = before
    if values.shape.rank == 0:
        msg = (
            f"the loss {resolved.name!r} returns one number for a whole batch; return a value for each "
            "sample, and Keras takes the mean"
        )
        raise FactoryError(msg)
    mask = get_keras_mask(predictions)
    if mask is not None:
        set_keras_mask(values, mask)
    return values


def reduced(values: Any, weights: Any, reduction: str) -> Any:
    """Return an array of losses reduced to one number; see `TrainingStep.reduce`."""
    mask, dtype = get_keras_mask(values), keras.config.floatx()
    loss = reduce_weighted_values(values, weights, mask, reduction, dtype)
    weighted = reduction == "mean_with_sample_weight" and weights is not None
    if replicas() == 1 or reduction == "sum" or (mask is None and not weighted):
        return loss
    ones = keras.ops.ones_like(keras.ops.cast(values, dtype))
    own = reduce_weighted_values(ones, weights if weighted else None, mask, "sum", dtype)
    # The gradient of a sum over replicas would be wrong.
    mean = _sum_over_replicas(tf.stop_gradient(own)) / replicas()
    return loss * tf.math.divide_no_nan(own, mean)


def replicas() -> int:
    """Return the number of replicas."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def _sum_over_replicas(value: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def in_units_of_the_loss(
    process: Callable[[Sequence[Any]], Sequence[Any]], gradients: Sequence[Any], optimizer: Any
) -> list[Any]:
    """Apply ``process`` to unscaled ``gradients``, and return them in the scale of ``optimizer``.

    Args:
        process: Function from a list of gradients to another of the same length.
        gradients: Gradients of the scaled loss; None if it does not depend on a variable.
        optimizer: The optimizer whose ``scale_loss`` scaled the loss; None for no scale.
    """
    one = tf.ones(())
    scale = one if optimizer is None else optimizer.scale_loss(one)
    if scale is one and replicas() == 1:
        return list(process(gradients))
    raw = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
    if replicas() > 1:
        sums = iter(_sum_over_replicas([each for each in raw if each is not None]))
        raw = [None if each is None else next(sums) for each in raw]
    done = process(raw if scale is one else _times(raw, 1.0 / scale))
    if scale is not one:
        # If they are not finite, the scale was too large, and the optimizer reduces it.
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in raw if g is not None])
        done = [
            None if new is None or old is None else tf.where(finite, new, old)
            for new, old in zip(_times(done, scale), raw, strict=True)
        ]
    # The optimizer adds the replicas' gradients, and each replica already has the sum.
    return _times(done, 1.0 / replicas())


def _times(gradients: Sequence[Any], factor: Any) -> list[Any]:
    return [None if each is None else each * tf.cast(factor, each.dtype) for each in gradients]
