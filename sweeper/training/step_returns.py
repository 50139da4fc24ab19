"""What the methods of a training step must return, each mistake named by the method's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError

_ENDS = "(does it end with `return`?)"


def something(step: object, method: str, value: Any, expected: str) -> Any:
    """``value``, if it is not None."""
    if value is None:
        raise _refusal(step, method, value, f"{expected} {_ENDS}")
    return value


def loss_inputs(step: object, value: Any) -> tuple[Any, Any, Any]:
    """``value``, as targets, predictions and weights."""
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        expected = "a tuple (targets, predictions) or (targets, predictions, weights)"
        raise _refusal(step, "loss_inputs(batch, outputs)", value, expected)
    return (*value, None) if len(value) == 2 else value


def per_example(step: object, value: Any) -> list[Any]:
    """The tensors of ``value``, each with one value an example at least."""
    method = "per_example_loss(targets, predictions)"
    expected = "one loss an example, of shape (examples, …)"
    something(step, method, value, expected)
    parts: list[Any] = keras.tree.flatten(value)
    for part in parts:
        if part is not None and len(getattr(part, "shape", ())) == 0:
            hint = "what belongs to no example is for extra_losses()"
            raise _refusal(step, method, part, f"{expected}; {hint}")
    return parts


def scalar(step: object, method: str, value: Any) -> Any:
    """``value``, if it is one number."""
    something(step, method, value, "one number, the loss")
    if len(getattr(value, "shape", ())) != 0:
        raise _refusal(step, method, value, "one number; self.reduce(values) makes one")
    return value


def extra_losses(step: object, value: Any) -> Sequence[Any]:
    """``value``, as a list of losses."""
    if not isinstance(value, Sequence):
        raise _refusal(step, "extra_losses()", value, "a list of losses, [] for none")
    return value


def variables(step: object, value: Any) -> list[Any]:
    """``value``, as a list of at least one variable."""
    listed = list(value) if isinstance(value, Sequence) else []
    if not listed or not all(isinstance(v, keras.Variable | tf.Variable) for v in listed):
        raise _refusal(step, "trainable_variables()", value, "a list of variables, at least one")
    return listed


def gradients(step: object, method: str, value: Any, trained: Sequence[Any]) -> list[Any]:
    """``value``, as one gradient a variable, of its shape."""
    expected = f"{len(trained)} gradients, one a variable"
    if not isinstance(value, Sequence) or len(value) != len(trained):
        raise _refusal(step, method, value, expected)
    for gradient, variable in zip(value, trained, strict=True):
        shape = tf.TensorShape(variable.shape)
        if gradient is not None and not shape.is_compatible_with(getattr(gradient, "shape", ())):
            name = getattr(variable, "path", None) or variable.name
            wanted = f"{expected}: {name!r} has the shape {list(variable.shape)}"
            raise _refusal(step, method, gradient, wanted)
    return list(value)


def logs(step: object, method: str, value: Any) -> dict[str, Any]:
    """``value``, as a dict of names to values."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _refusal(step, method, value, "a dict of metric names to values")
    return dict(value)


def _refusal(step: object, method: str, seen: Any, expected: str) -> FactoryError:
    return FactoryError(
        f"{type(step).__qualname__}.{method} returned {_what(seen)}; expected {expected}"
    )


def _what(value: Any) -> str:
    if value is None:
        return "None"
    if tf.is_tensor(value):
        return f"a {value.dtype.name} tensor of shape {value.shape}"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
