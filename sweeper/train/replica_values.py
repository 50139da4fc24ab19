"""Capture and restore of variables with a value on each replica of a `tf.distribute.Strategy`.

A distributed variable consists of one variable per replica. Weights and optimizer slots are equal on
all replicas; BatchNorm's moving statistics, seed generators' states and metrics differ. Each
replica's value is captured: the first under the variable's key, the others below it. If all are
equal, the file contains only the first (`Snapshot.repeated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.inspection.sorts import class_name, framework_variables
from sweeper.train.codec import NotPlainError, Tensors


def replicas_of(variable: Any) -> tuple[Any, ...]:
    """Return the variables of ``variable``, one for each replica."""
    inner = _inner(variable)
    return tuple(inner.values) if isinstance(inner, tf.distribute.DistributedValues) else (inner,)


def hold_replicas(variable: Any, key: str, tensors: Tensors) -> tuple[str, ...]:
    """Put the value of each replica into ``tensors``, the first one's under ``key``; see `Snapshot.repeated`.

    A tensor shares its variable's buffer. TensorFlow copies a shared buffer before it writes to it,
    so later writes do not change the tensor, and no copy is made here. Of a variable whose readers get a
    sum or a mean, the number of replicas must be known, so no tensor counts as repeated.
    """
    held = {_key(key, i): v.read_value() for i, v in enumerate(replicas_of(variable))}
    tensors.update(held)
    if len(held) == 1 or _is_made_on_read(variable):
        return ()
    return tuple(name for name in held if name != key)


def refuse_replicated(value: object, path: str) -> None:
    """Refuse an object made during training whose variables a resumed process could create only under the strategy."""
    if any(len(replicas_of(variable)) > 1 for variable in framework_variables(value) or ()):
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

    If the number of replicas is another one now, assign `as_one`.
    """
    values, replicas = held_tensors(key, tensors), replicas_of(variable)
    if len(values) == 1 and not _is_made_on_read(variable):
        values *= len(replicas)
    if len(values) != len(replicas):
        values, replicas = [as_one(variable, key, tensors)], (_inner(variable),)
    for replica, value in zip(replicas, values, strict=True):
        replica.assign(value)


def as_one(variable: Any, key: str, tensors: Mapping[str, Any]) -> Any:
    """Return the value that a reader of ``variable`` gets: the sum, the mean, or the first replica's."""
    values = held_tensors(key, tensors)
    how = _inner(variable).aggregation.name
    if len(values) == 1 or how not in ("SUM", "MEAN") or not _is_made_on_read(variable):
        return values[0]
    total = np.sum(np.stack(values), axis=0, dtype=values[0].dtype)
    return total if how == "SUM" else (total / len(values)).astype(values[0].dtype)


def _is_made_on_read(variable: Any) -> bool:
    """Return whether each replica writes its own value, and reading aggregates them."""
    return _inner(variable).synchronization is tf.VariableSynchronization.ON_READ


def _inner(variable: Any) -> Any:
    inner = getattr(variable, "value", variable)
    return variable if callable(inner) else inner


def _key(key: str, index: int) -> str:
    return key if index == 0 else f"{key}/replica-{index}"
