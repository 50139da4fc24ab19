"""Ready ways to treat gradients before they are applied, for ``TrainingStep(gradients=[…])``.

Each takes the list of gradients and returns another, in the same order; they are applied one after
the other. A gradient is a tensor, a ``tf.IndexedSlices`` (of an embedding, for example), or None where the
loss does not depend on the variable; None stays None. Any function of that form composes with them.

They see the gradients of one batch, in the loss's own units (unscaled in mixed precision), summed
over all replicas. To accumulate over k batches, give the optimizer
``gradient_accumulation_steps=k``; to clip what was accumulated, its ``global_clipnorm``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from sweeper.errors import DefinitionError

Gradients = Sequence[Any]
GradientProcessor = Callable[[Gradients], Gradients]


def nan_to_zero(gradients: Gradients) -> Gradients:
    """Put 0 where an element is NaN; infinities stay."""
    return _mapped(lambda x: tf.where(tf.math.is_nan(x), tf.zeros_like(x), x), gradients)


def non_finite_to_zero(gradients: Gradients) -> Gradients:
    """Put 0 where an element is NaN or infinite."""
    return _mapped(lambda x: tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)), gradients)


def clip_by_global_norm(norm: float) -> GradientProcessor:
    """Scale all gradients together, so that their common Euclidean norm is at most ``norm``.

    As ``tf.clip_by_global_norm``: where an element is NaN or infinite, all become NaN, so put
    `nan_to_zero` or `non_finite_to_zero` before it where that may happen.

    Args:
        norm: The largest norm, above 0.

    Raises:
        DefinitionError: ``norm`` is not a number above 0.
    """
    limit = _above_zero("clip_by_global_norm", norm)

    def clip(gradients: Gradients) -> Gradients:
        clipped, _ = tf.clip_by_global_norm(list(gradients), limit)
        return list(clipped)

    return clip


def clip_by_value(value: float) -> GradientProcessor:
    """Bring every element into ``[-value, value]``; NaN stays NaN.

    Args:
        value: The largest absolute value, above 0.

    Raises:
        DefinitionError: ``value`` is not a number above 0.
    """
    limit = _above_zero("clip_by_value", value)

    def clip(gradients: Gradients) -> Gradients:
        return _mapped(lambda x: tf.clip_by_value(x, -limit, limit), gradients)

    return clip


def _above_zero(function: str, value: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value > 0:
        raise DefinitionError(
            f"{function}({value!r}): expected a number above 0, such as {function}(10.0)"
        )
    return float(value)


def _mapped(change: Callable[[Any], Any], gradients: Gradients) -> Gradients:
    """Change the values of gradients; of a sparse gradient, those that it has."""

    def changed(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = change(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return None if gradient is None else change(gradient)

    return [changed(gradient) for gradient in gradients]
