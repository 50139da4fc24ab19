"""Python values that a traced function has as constants in its graph.

TensorFlow traces a function once and bakes in every number, string and flag that its code reads on
the way. A fresh process traces it again, with the values of then. So what was read is remembered at
the trace, and where it is another at a checkpoint, the two would differ.
"""

from __future__ import annotations

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection.code import closure_of, globals_of, names_in
from sweeper.inspection.sorts import fields_of, is_users_module
from sweeper.train.codec.form import MISSING, same

_MOST = 2_000
"""Maximum number of recorded values of a function."""

_LEAVES = (bool, int, float, str, np.generic)


class BakedFunctions:
    """The functions that were traced since the start of training, with the values that they read."""

    def __init__(self) -> None:
        self._traced: list[tuple[Any, dict[str, Any]]] = []

    def traced(self, function: Any) -> None:
        """Record a newly traced ``function``."""
        if isinstance(getattr(function, "__code__", None), types.CodeType) or hasattr(
            function, "__func__"
        ):
            values = _values_read(function)
            if values:
                self._traced.append((function, values))

    def changed(self) -> tuple[str, str, Any, Any] | None:
        """Return the first function with a changed value: its name, the value's name, and both values."""
        for function, values in self._traced:
            now = _values_read(function)
            for path, was in values.items():
                if not same(was, now.get(path, MISSING)):
                    return _name(function), path, was, now.get(path, MISSING)
        return None


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))


def _values_read(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any, frozenset[str]]] = [("", function, frozenset())]
    while waiting and len(found) < _MOST:
        path, value, names = waiting.pop()
        if isinstance(value, _LEAVES):
            found[path] = value
            continue
        if value is None or id(value) in seen or isinstance(value, _UNREAD):
            continue
        seen.add(id(value))
        waiting += reversed(_inside(path, value, names))
    return found


_UNREAD = (
    type,
    types.ModuleType,
    keras.Model,
    keras.layers.Layer,
    keras.Variable,
    tf.Variable,
    tf.Tensor,
    np.ndarray,
)
"""Classes of values that a graph reads when it runs, or that are too complex to compare."""


def _inside(path: str, value: Any, names: frozenset[str]) -> list[tuple[str, Any, frozenset[str]]]:
    if isinstance(value, types.MethodType):
        function, owner = value.__func__, value.__self__
        own = names_in(function) if isinstance(function, types.FunctionType) else frozenset()
        return [(path, function, own), (f"{path}self", owner, own)]
    if isinstance(value, types.FunctionType):
        return _of_function(value) if is_users_module(value.__module__ or "") else []
    if isinstance(value, dict):
        return [(f"{path}[{k!r}]", v, names) for k, v in list(dict.items(value))[:_MOST]]
    if isinstance(value, list | tuple):
        return [(f"{path}[{i}]", v, names) for i, v in enumerate(value[:_MOST])]
    fields = fields_of(value)
    return [(f"{path}.{name}", fields[name], names) for name in fields if name in names]


def _of_function(function: types.FunctionType) -> list[tuple[str, Any, frozenset[str]]]:
    names = names_in(function)
    read = (*closure_of(function), *globals_of(function))
    return [(name, value, names) for name, value in read]
