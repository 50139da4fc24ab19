"""Capture and restore of variables with a value on each replica of a `tf.distribute.Strategy`.

Under a strategy one variable stands for several, one a replica. What is written in step with the
others (weights, optimizer slots) is the same on all; BatchNorm's moving statistics, seed generators'
states and metrics are written by each replica for itself. So each replica's value is held, under the
variable's own name for the first one and below it for the others; where all the others equal the
first, the file has that one alone (`Snapshot.repeated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sweeper.inspection.sorts import class_name, framework_variables
from sweeper.train.codec.form import NotPlainError, Tensors

_BELOW = "replica-"


def replicas_of(variable: Any) -> tuple[Any, ...]:
    """Return the variables of ``variable`` by replica; only itself if there is one."""
    import tensorflow as tf

    inner = _inner(variable)
    if isinstance(inner, tf.distribute.DistributedValues):
        return tuple(inner.values)
    return (inner,)


def is_replicated(variable: Any) -> bool:
    """Return whether ``variable`` has one variable for each replica."""
    return len(replicas_of(variable)) > 1


def hold_replicas(variable: Any, key: str, tensors: Tensors) -> tuple[str, ...]:
    """Put the value of each replica into ``tensors``, the first one's under ``key``.

    Returns:
        The tensors that need not be written where they all equal the one of ``key``; none of a
        variable that a reader gets the sum or the mean of, where it must be known how many there
        were.
    """
    held = {_key(key, i): v.read_value() for i, v in enumerate(replicas_of(variable))}
    tensors.update(held)
    if len(held) == 1 or _is_made_on_read(variable):
        return ()
    return tuple(name for name in held if name != key)


def refuse_replicated(value: object, path: str) -> None:
    """Refuse an object made during training that has a variable with a value on each replica.

    A fresh process has none to give the values back to, and could make none but under the strategy.

    Raises:
        NotPlainError: It is one; ``path`` leads to it.
    """
    if any(map(is_replicated, framework_variables(value) or ())):
        reason = f"a {class_name(type(value))} with a value on each replica, made during training"
        raise NotPlainError(path, value, f"{reason}; make it in the factory")


def held_tensors(key: str, tensors: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that `hold_replicas` put under ``key``; only the first if all were equal."""
    found = [tensors[key]]
    while _key(key, len(found)) in tensors:
        found.append(tensors[_key(key, len(found))])
    return found


def assign_replicas(variable: Any, key: str, tensors: Mapping[str, Any]) -> None:
    """Assign to each replica of ``variable`` the tensor that `hold_replicas` put under ``key``.

    Where there are more or fewer replicas now, or none, it gets what TensorFlow would give a reader
    of the variable: the sum or the mean of one that is read so, else the first replica's value.
    """
    values = held_tensors(key, tensors)
    replicas = replicas_of(variable)
    if len(values) == 1 and not _is_made_on_read(variable):
        values *= len(replicas)
    if len(values) == len(replicas):
        for replica, value in zip(replicas, values, strict=True):
            replica.assign(value)
        return
    _inner(variable).assign(as_one(variable, key, tensors))


def as_one(variable: Any, key: str, tensors: Mapping[str, Any]) -> Any:
    """Return the value for readers of ``variable``, from the tensors that `hold_replicas` put under ``key``."""
    values = held_tensors(key, tensors)
    if len(values) == 1 or not _is_made_on_read(variable):
        return values[0]
    return _as_read(variable, values)


def _as_read(variable: Any, values: list[Any]) -> Any:
    how = _name(getattr(variable, "aggregation", None))
    total = np.sum(np.stack(values), axis=0, dtype=values[0].dtype)
    if how == "sum":
        return total
    if how == "mean":
        return (total / len(values)).astype(values[0].dtype)
    return values[0]


def _is_made_on_read(variable: Any) -> bool:
    """Return whether each replica writes its own value, which are aggregated on read."""
    of_keras = _name(getattr(variable, "_synchronization", None))
    return "on_read" in (of_keras, _name(getattr(_inner(variable), "synchronization", None)))


def _name(value: Any) -> str:
    return str(getattr(value, "name", value)).lower()


def _inner(variable: Any) -> Any:
    inner = getattr(variable, "value", variable)
    return variable if callable(inner) else inner


def _key(key: str, index: int) -> str:
    return key if index == 0 else f"{key}/{_BELOW}{index}"
