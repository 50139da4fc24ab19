"""Checks of the results of a training step's methods; an error names the method."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sweeper.errors import FactoryError
from sweeper.train.step_losses import by_output

_ENDS = "(does it end with `return`?)"


def something(step: object, method: str, value: Any, expected: str) -> None:
    """Refuse None as the result of a method."""
    if value is None:
        raise _refusal(step, method, value, f"{expected} {_ENDS}")


def loss_inputs(step: object, value: Any) -> tuple[Any, Any, Any]:
    """Return ``value`` as targets, predictions and weights."""
    if not isinstance(value, tuple) or len(value) not in (2, 3):
        expected = "a tuple (targets, predictions) or (targets, predictions, weights)"
        raise _refusal(step, "loss_inputs(batch, outputs)", value, expected)
    return (*value, None) if len(value) == 2 else value


def per_example(step: object, value: Any) -> list[Any]:
    """Return the tensors of ``value``, each with at least one value for each example."""
    method = "per_example_loss(targets, predictions)"
    expected = "one loss for each example, of shape (examples, …)"
    something(step, method, value, expected)
    parts: list[Any] = keras.tree.flatten(value)
    for part in parts:
        if part is not None and len(getattr(part, "shape", ())) == 0:
            hint = "return losses that belong to no example from extra_losses()"
            raise _refusal(step, method, part, f"{expected}; {hint}")
    return parts


def scalar(step: object, method: str, value: Any) -> Any:
    """Return ``value`` if it is one number."""
    something(step, method, value, "one number, the loss")
    if len(getattr(value, "shape", ())) != 0:
        raise _refusal(step, method, value, "one number; self.reduce(values) makes one")
    return value


def extra_losses(step: object, value: Any) -> Sequence[Any]:
    """Return ``value`` as a list of losses."""
    if not isinstance(value, Sequence):
        raise _refusal(step, "extra_losses()", value, "a list of losses, [] for none")
    return value


def variables(step: object, value: Any) -> list[Any]:
    """Return ``value`` as a list of at least one variable."""
    listed = list(value) if isinstance(value, Sequence) else []
    if not listed or not all(isinstance(v, keras.Variable | tf.Variable) for v in listed):
        raise _refusal(step, "trainable_variables()", value, "a list of variables, at least one")
    return listed


def gradients(step: object, method: str, value: Any, trained: Sequence[Any]) -> list[Any]:
    """Return ``value`` as one gradient for each variable, with its shape."""
    expected = f"{len(trained)} gradients, one for each variable"
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
    """Return ``value`` as a dict of names to values."""
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


_OF_MODELS = ("train_step", "test_step", "compute_loss")
"""Methods of a model's class that a step replaces."""

_FUNCTIONS = (types.FunctionType, types.MethodType)

_DEFAULTS: Mapping[str, Any] = {
    "optimizer": None,
    "loss": None,
    "loss_weights": None,
    "metrics": None,
    "weighted_metrics": None,
    "run_eagerly": False,
    "jit_compile": "auto",
    "steps_per_execution": 1,
}


def check_binding(step: Any, model: keras.Model) -> None:
    """Refuse a step that was bound before, and a model that has its own step.

    Raises:
        FactoryError: Names the problem and its solution.
    """
    name = type(step).__qualname__
    if "compile_arguments" not in vars(step):
        msg = f"{name}.__init__ does not call super().__init__(…); call it first"
        raise FactoryError(msg)
    for attribute, value in vars(step).items():
        method = getattr(type(step), attribute, None)
        if isinstance(method, types.FunctionType) and not isinstance(value, _FUNCTIONS):
            msg = (
                f"{name} has an attribute {attribute!r}, which hides its method {attribute}(); "
                "give it another name"
            )
            raise FactoryError(msg)
    if step.model is not None:
        msg = (
            f"the {name} that the step factory returned is already bound to another model; make a "
            "new one in the factory"
        )
        raise FactoryError(msg)
    own = [m for m in _OF_MODELS if getattr(type(model), m) is not getattr(keras.Model, m)]
    if own:
        msg = (
            f"the model's class {type(model).__qualname__} has its own {own[0]}, which step= "
            f"would replace; leave out step=, or move it into {name}"
        )
        raise FactoryError(msg)


def compile_with(
    step: Any,
    model: keras.Model,
    given: Mapping[str, Any],
    *,
    needs_optimizer: bool,
    own_update: bool,
) -> tuple[Any, Any]:
    """Compile ``model`` with the step's arguments, unless it is compiled.

    Args:
        step: The step, for its name.
        model: The trial's model.
        given: Arguments of ``model.compile``.
        needs_optimizer: Whether the step applies gradients with ``model.optimizer``.
        own_update: Whether it overrides ``update`` but not ``train_step``.

    Returns:
        The losses and their weights, by the model's outputs.

    Raises:
        FactoryError: A compiled model and a step with arguments; no optimizer; or an optimizer that
            would get gradients scaled for another one.
    """
    name = type(step).__qualname__
    changed = [argument for argument, value in given.items() if value != _DEFAULTS[argument]]
    if model.compiled and changed:
        msg = (
            f"the model {model.name!r} is compiled, but {name} was also given {changed[0]}=; "
            "leave model.compile(…) out of the model factory, or give the step no such argument: "
            "then it uses those of compile"
        )
        raise FactoryError(msg)
    if not model.compiled:
        if needs_optimizer and given["optimizer"] is None:
            msg = (
                f"{name} has no optimizer; give one, super().__init__(optimizer=…), or override "
                "update(gradients, variables, values) or train_step(batch) to use others"
            )
            raise FactoryError(msg)
        model.compile(**given)
    others = [
        o for o in _found(vars(step), keras.optimizers.Optimizer) if o is not given["optimizer"]
    ]
    if own_update and others and isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        msg = (
            f"{name}.update uses other optimizers than self.optimizer, and in mixed precision "
            "gradients are scaled only for self.optimizer; call minimize(loss, variables, "
            "optimizer) for each in train_step(batch), or leave mixed precision"
        )
        raise FactoryError(msg)
    losses = model._compile_loss
    found = (model.loss, None if losses is None else losses._user_loss_weights)
    if not isinstance(getattr(model, "output", None), list | tuple):
        return found
    loss, weights = (by_output(each, model.output_names) for each in found)
    return loss, weights


def metrics_in(objects: Mapping[str, Any]) -> list[keras.metrics.Metric]:
    """Return the metrics among ``objects`` and in their lists, tuples and dicts, each once."""
    return list({id(metric): metric for metric in _found(objects, keras.metrics.Metric)}.values())


def _found(objects: Any, kind: Any) -> Iterator[Any]:
    for obj in objects.values() if isinstance(objects, Mapping) else objects:
        if isinstance(obj, kind):
            yield obj
        elif isinstance(obj, list | tuple | Mapping):
            yield from _found(obj, kind)
