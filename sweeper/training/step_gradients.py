"""Gradients as those who process them expect them: of the whole batch, in the units of the loss.

In mixed precision a loss is scaled before its gradients are taken, and on several replicas each has
the gradients of its own share. A norm to clip at means neither. What was processed is put back into
the form in which the optimizer takes it: scaled, and a share of the sum that it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sweeper.training.step_losses import over_replicas, replicas


def in_units_of_the_loss(
    process: Callable[[Sequence[Any]], Sequence[Any]], gradients: Sequence[Any], optimizer: Any
) -> list[Any]:
    """What ``process`` makes of ``gradients``, which are to be applied by ``optimizer``.

    Args:
        process: From a list of gradients to another of the same length.
        gradients: Of the scaled loss; None where it does not depend on a variable.
        optimizer: Whose ``scale_loss`` scaled it; None for no scale.
    """
    one = tf.ones(())
    scale = one if optimizer is None else optimizer.scale_loss(one)
    count = replicas()
    if scale is one and count == 1:
        return list(process(gradients))
    raw = _summed(gradients)
    done = process(raw if scale is one else [_times(each, 1.0 / scale) for each in raw])
    if scale is not one:
        # Not finite means that the scale was too large: that is for the optimizer to see and lower.
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in raw if g is not None])
        done = [
            None if new is None or old is None else tf.where(finite, new * scale, old)
            for new, old in zip(done, raw, strict=True)
        ]
    # The optimizer adds up what the replicas give it, and each has the sum already.
    return [_times(each, 1.0 / count) for each in done] if count > 1 else list(done)


def _summed(gradients: Sequence[Any]) -> list[Any]:
    """Dense gradients, each summed over the replicas."""
    dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
    sums = iter(over_replicas([g for g in dense if g is not None]))
    return [None if g is None else next(sums) for g in dense]


def _times(gradient: Any, factor: Any) -> Any:
    return None if gradient is None else gradient * tf.cast(factor, gradient.dtype)
