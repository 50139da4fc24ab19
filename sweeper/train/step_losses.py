"""Unreduced losses and unscaled gradients, on any number of replicas.

In mixed precision the loss is scaled before it is differentiated, and each replica has the gradients of
its own share. Processing such as clipping needs unscaled gradients of the whole loss. Afterwards they are
converted to the form for the optimizer: scaled, and each replica's share of the sum.

A loss object of Keras returns the mean over the examples of its replica. Needed is the mean over the whole
batch. So a step keeps one value per example, and `reduced` divides their sum by the number of examples in
the global batch. Then the gradients and losses of replicas can be added, also for unequal slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.losses.loss import reduce_weighted_values, scale_loss_for_distribution
from keras.src.trainers.compile_utils import get_loss

from sweeper.errors import FactoryError

MEAN = "sum_over_batch_size"
_UNREDUCED = (None, "none")


def unreduced(loss: Any, targets: Any, predictions: Any) -> Any:
    """Return the unreduced values of a loss object, or of a structure of them.

    Args:
        loss: A loss, its name or a function, for all outputs; or a list or dict with one per output.
        targets: An array, or a structure like that of ``predictions``.
        predictions: Outputs of the model: a tensor, or a list or dict of tensors.

    Returns:
        A tensor; or a list or dict like ``predictions``, with None for outputs without a loss.

    Raises:
        FactoryError: The structures differ.
    """
    if not keras.tree.is_nested(predictions):
        flat = keras.tree.flatten(loss)
        return _values(flat[0] if len(flat) == 1 else loss, targets, predictions)
    outputs, wanted = _parts(predictions), _parts(loss)
    if not keras.tree.is_nested(loss):
        wanted = dict.fromkeys(outputs, loss)
    given = _parts(targets)
    if set(wanted) != set(outputs) or set(given) != set(outputs):
        shown = [", ".join(sorted(map(repr, each))) for each in (outputs, wanted, given)]
        msg = (
            f"the model has the outputs {shown[0]}; loss= has {shown[1]}, and the targets have "
            f"{shown[2] or 'no names'}; give loss= and the targets the structure of the outputs, or "
            "override per_example_loss(targets, predictions)"
        )
        raise FactoryError(msg)
    found = {name: unreduced(wanted[name], given[name], outputs[name]) for name in outputs}
    return found if isinstance(predictions, Mapping) else list(found.values())


def by_output(structure: Any, names: Any) -> Any:
    """Return a dict with the model's output names as a list in their order; others unchanged."""
    if isinstance(structure, Mapping) and names and set(structure) == set(names):
        return [structure[name] for name in names]
    return structure


def for_each(structure: Any, parts: Sequence[Any]) -> list[Any]:
    """Return the element of ``structure`` for each of ``parts``; a single element is used for all."""
    if not keras.tree.is_nested(structure):
        return [structure] * len(parts)
    flat = keras.tree.flatten(structure)
    return flat if len(flat) == len(parts) else [None] * len(parts)


def _parts(structure: Any) -> dict[Any, Any]:
    if isinstance(structure, Mapping):
        return dict(structure)
    return dict(enumerate(structure)) if isinstance(structure, list | tuple) else {}


def _values(loss: Any, targets: Any, predictions: Any) -> Any:
    resolved = get_loss(loss, targets, predictions)
    if resolved is None:
        return None
    before, resolved.reduction = resolved.reduction, None
    try:
        values = resolved(targets, predictions)
    finally:
        resolved.reduction = before
    mask = get_keras_mask(predictions)
    if mask is not None:
        set_keras_mask(values, mask)
    return values


def reduction_of(loss: Any) -> str:
    """Return the reduction of a loss object; `MEAN` if it has none."""
    reduction = getattr(loss, "reduction", MEAN)
    return MEAN if reduction in _UNREDUCED else str(reduction)


def reduced(values: Any, weights: Any = None, reduction: str = MEAN) -> Any:
    """Return an array of losses reduced to one number; see `TrainingStep.reduce`."""
    mask, dtype = get_keras_mask(values), keras.config.floatx()
    if replicas() == 1:
        return reduce_weighted_values(values, weights, mask, reduction, dtype)
    total = reduce_weighted_values(values, weights, mask, "sum", dtype)
    if reduction == "sum":
        return total
    if reduction == "mean_with_sample_weight" and weights is not None:
        like = keras.ops.ones_like(keras.ops.cast(values, dtype))
        count = reduce_weighted_values(like, weights, mask, "sum", dtype)
    else:
        counted = keras.ops.ones_like(values) if mask is None else mask
        count = keras.ops.sum(keras.ops.cast(counted, dtype))
    return keras.ops.divide_no_nan(total, over_replicas(count))


def scaled_extra(loss: Any) -> Any:
    """Return each replica's share of a loss that belongs to no example."""
    if not keras.backend.is_float_dtype(loss.dtype):
        loss = keras.ops.cast(loss, keras.config.floatx())
    return scale_loss_for_distribution(keras.ops.sum(loss))


def examples_in(*structures: Any) -> Any:
    """Return the number of examples: the first dimension of the first tensor that has one."""
    flat = (leaf for structure in structures for leaf in keras.tree.flatten(structure))
    return tf.shape(next(leaf for leaf in flat if len(getattr(leaf, "shape", ())) > 0))[0]


def over_replicas(value: Any) -> Any:
    """Return the sum over all replicas of a float, or of each in a list, without a gradient."""
    if replicas() == 1:
        return value
    context = tf.distribute.get_replica_context()
    # The gradient of a sum over replicas would be wrong.
    constant = tf.nest.map_structure(tf.stop_gradient, value)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, constant)


def as_mean(loss: Any, examples: Any) -> Any:
    """Return a replica's share of a loss, scaled so that the mean weighted by ``examples`` is the loss."""
    if replicas() == 1:
        return loss
    own = tf.cast(examples, loss.dtype)
    return tf.math.divide_no_nan(loss * over_replicas(own), own)


def replicas() -> int:
    """Return the number of replicas."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


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
    count = replicas()
    if scale is one and count == 1:
        return list(process(gradients))
    raw = _summed(gradients)
    done = process(raw if scale is one else [_times(each, 1.0 / scale) for each in raw])
    if scale is not one:
        # If they are not finite, the scale was too large, and the optimizer reduces it.
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in raw if g is not None])
        done = [
            None if new is None or old is None else tf.where(finite, new * scale, old)
            for new, old in zip(done, raw, strict=True)
        ]
    # The optimizer adds the replicas' gradients, and each replica already has the sum.
    return [_times(each, 1.0 / count) for each in done] if count > 1 else list(done)


def _summed(gradients: Sequence[Any]) -> list[Any]:
    """Return dense gradients, each summed over the replicas."""
    dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
    sums = iter(over_replicas([g for g in dense if g is not None]))
    return [None if g is None else next(sums) for g in dense]


def _times(gradient: Any, factor: Any) -> Any:
    return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)
