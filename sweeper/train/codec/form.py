"""Form shared by the encoder and the decoder: errors, digests, arrays, and names of classes and functions.

What was there at the beginning is referred to by its path. Of the rest, only what a loaded module
of the user's has under its own name, and functions and classes of the libraries that compute, can
be named; nothing is imported for it, and nothing is called.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from sweeper.inspection.sorts import class_name, is_users_module

Json = Any
Tensors = dict[str, Any]

TAG = "!"


class NotPlainError(Exception):
    """``path`` leads to ``value``, which has no plain form."""

    def __init__(self, path: str, value: object, reason: str = "") -> None:
        what = reason or f"a {class_name(type(value))}"
        super().__init__(f"{path} is {what}")
        self.path = path
        self.what = what


class UnplaceableError(ValueError):
    """A value was saved that has no place in what is there now."""


def digest_of(array: Any) -> str:
    """XXH3-128 of an array's shape, type and bytes."""
    values = np.ascontiguousarray(array)
    digest = xxhash.xxh3_128(values.reshape(-1).view(np.uint8).data)
    digest.update(f"{values.dtype}{values.shape}".encode())
    return digest.hexdigest()


def hold(variable: Any) -> Any:
    """Return the variable's value as it is now; it stays that value when the variable is next written.

    The tensor shares the variable's buffer, and TensorFlow copies a shared buffer before writing
    to it, so holding costs no copy of its own.
    """
    inner = getattr(variable, "value", variable)
    if callable(inner):
        inner = variable
    return inner.read_value()


_LIBRARIES = frozenset(
    {"argparse", "builtins", "collections", "itertools", "keras", "math", "numpy", "operator"}
    | {"tensorflow", "types"}
)


def name_of(thing: Any) -> str | None:
    """``module:qualified.name`` of a class or function; None where that does not lead to it."""
    module = getattr(thing, "__module__", None)
    if module is None and isinstance(thing, types.BuiltinFunctionType):
        module = "builtins"
    if type(thing).__name__ == "ufunc":
        module = "numpy"
    qualified = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if find_named(name) is thing else None


def find_named(name: str) -> Any:
    """Return the inverse of `name_of`; None where there is no such thing, or where it may not be named."""
    module_name, _, qualified = name.partition(":")
    if module_name.partition(".")[0] not in _LIBRARIES and not is_users_module(module_name):
        return None
    found: Any = sys.modules.get(module_name)
    for part in qualified.split("."):
        if isinstance(found, types.ModuleType | type):
            found = vars(found).get(part)
        else:
            return None
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found if isinstance(found, type) or callable(found) else None


def put_array(array: Any, tensors: Tensors, key: str) -> Json:
    """Write any array but one of objects down; text, dates and records as their bytes."""
    plain = np.array(array, copy=True, order="C").view(np.ndarray)
    if plain.dtype.kind == "O":
        raise NotPlainError(key, array, "an array of Python objects")
    if plain.dtype.kind in "SUMmV" and plain.dtype.name != "bfloat16":
        described = _as_lists(dtype_to_descr(plain.dtype))
        # What lies between the fields of a record is nobody's, and no copy brings it.
        filled = np.zeros(plain.shape, plain.dtype)
        filled[...] = plain
        tensors[key] = np.frombuffer(filled.tobytes(), np.uint8)
        return {"t": key, "dtype": described, "shape": list(plain.shape)}
    tensors[key] = plain
    return {"t": key}


def take_array(saved: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `put_array`."""
    if saved["t"] not in tensors:
        msg = f"the tensor {saved['t']!r} is missing"
        raise UnplaceableError(msg)
    array = np.asarray(tensors[saved["t"]])
    if "dtype" not in saved:
        return np.array(array)
    dtype = descr_to_dtype(_described(saved["dtype"]))
    return np.frombuffer(array.tobytes(), dtype).reshape(saved["shape"]).copy()


def _as_lists(described: Any) -> Any:
    if isinstance(described, tuple | list):
        return [_as_lists(each) for each in described]
    return described


def _described(lists: Any) -> Any:
    """NumPy's description of a type, whose fields JSON has as lists."""
    if isinstance(lists, str):
        return lists
    return [
        (tuple(name) if isinstance(name, list) else name, _described(kind), *map(tuple, shape))
        for name, kind, *shape in lists
    ]
