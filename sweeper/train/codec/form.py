"""Common parts of encoder and decoder: errors, arrays, comparison, and names of classes and functions.

A class or function is encoded by its name if a loaded module of the user's or one of `_LIBRARIES`
has it under that name. Nothing is imported or called to find it.

Leaves, which are values without parts, are compared by identity and then by their bits, never by
the user's ``==``.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import fractions
import io
import operator
import re
import struct
import sys
import types
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash
from numpy.lib.format import read_array, write_array

from sweeper.inspection.sorts import class_name, is_users_module

Json = Any
Tensors = dict[str, Any]

TAG = "!"


class NotPlainError(Exception):
    """A value at ``path`` that cannot be encoded.

    Args:
        path, value: The value and its path.
        reason: What it is; by default the name of its class.
        advice: What to use instead.
    """

    def __init__(self, path: str, value: object, reason: str = "", advice: str = "") -> None:
        what = reason or f"a {class_name(type(value))}"
        super().__init__(f"{path} is {what}{'; ' if advice else ''}{advice}")
        self.path = path
        self.what = what
        self.advice = advice


class UnplaceableError(ValueError):
    """A saved value that does not fit the present objects."""


def digest_of(array: Any) -> str:
    """Return the XXH3-128 of an array's shape, dtype and bytes."""
    values = np.ascontiguousarray(array)
    digest = xxhash.xxh3_128(values.reshape(-1).view(np.uint8).data)
    digest.update(f"{values.dtype}{values.shape}".encode())
    return digest.hexdigest()


def form_of(array: Any) -> str:
    """Return the dtype and shape of an array, tensor or variable, such as ``float32[2, 3]``."""
    return f"{getattr(array.dtype, 'name', array.dtype)}{list(array.shape)}"


_LIBRARIES = frozenset(
    {"argparse", "builtins", "collections", "itertools", "keras", "math", "numpy", "operator"}
    | {"tensorflow", "types"}
)


def name_of(obj: Any) -> str | None:
    """Return ``module:qualified.name`` of a class or function; None if the name does not lead to it."""
    module = getattr(obj, "__module__", None)
    if module is None and isinstance(obj, types.BuiltinFunctionType):
        module = "builtins"
    if type(obj).__name__ == "ufunc":
        module = "numpy"
    qualified = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if find_named(name) is obj else None


def find_named(name: str) -> Any:
    """Return the class or function of a name from `name_of`; None if there is none or it is not allowed."""
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


OBJECT_ARRAY = ("an array of Python objects", "keep a list")
"""Description of such an array in a refusal, and what to use instead."""


def base_of(cls: type) -> type:
    """Return the built-in class whose methods read and write a container of ``cls``."""
    bases = (OrderedDict, defaultdict, dict, list, deque)
    return next(base for base in bases if issubclass(cls, base))


def put_array(array: Any, tensors: Tensors, key: str) -> Json:
    """Put a copy of ``array`` into ``tensors`` and return its node; text, dates and records as a ``.npy`` file.

    Raises:
        NotPlainError: It is an array of Python objects.
    """
    plain = np.array(array, copy=True, order="C").view(np.ndarray)
    if plain.dtype.hasobject:
        raise NotPlainError(key, array, *OBJECT_ARRAY)
    if plain.dtype.kind in "SUMm" or issubclass(plain.dtype.type, np.void):
        # Padding between the fields of a record is undefined, and assignment does not copy it.
        filled = np.zeros(plain.shape, plain.dtype)
        filled[...] = plain
        file = io.BytesIO()
        write_array(file, filled, allow_pickle=False)
        tensors[key] = np.frombuffer(file.getvalue(), np.uint8)
        return {"t": key, "npy": True}
    tensors[key] = plain
    return {"t": key}


def take_array(saved: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `put_array`."""
    if saved["t"] not in tensors:
        msg = f"the tensor {saved['t']!r} is missing"
        raise UnplaceableError(msg)
    array = np.asarray(tensors[saved["t"]])
    if "npy" in saved:
        return read_array(io.BytesIO(array.tobytes()), allow_pickle=False)
    return np.array(array)


class _Missing:
    """Placeholder for a missing value."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()


def is_plain(value: object) -> bool:
    """Return whether ``value`` is a leaf that JSON represents."""
    cls = type(value)
    return cls in PLAIN or isinstance(value, np.generic | PurePath | tf.DType | np.dtype)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same object, or equal leaves or tuples of leaves."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in PLAIN and type(one) not in _COMPARED:
        return bool(one == other)
    for kinds, compare in _COMPARED.items():
        if isinstance(one, kinds):
            return compare(one, other)
    return False


def _same_parts(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same_floats(one: float, other: float) -> bool:
    return one == other != 0.0 or struct.pack("d", one) == struct.pack("d", other)


def _same_tensors(one: Any, other: Any) -> bool:
    if not hasattr(one, "numpy") or not hasattr(other, "numpy"):
        return False
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype.kind == "O":
        return a.shape == b.shape and bool(a.tolist() == b.tolist())
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    float: _same_floats,
    complex: lambda a, b: _same_floats(a.real, b.real) and _same_floats(a.imag, b.imag),
    tuple: _same_parts,
    frozenset: _same_parts,
    np.generic: lambda a, b: bool(a.dtype == b.dtype and a.tobytes() == b.tobytes()),
    types.MethodType: lambda a, b: a.__self__ is b.__self__ and a.__func__ is b.__func__,
    **dict.fromkeys((PurePath, tf.DType, np.dtype, tf.TensorShape), operator.eq),
    tf.Tensor: _same_tensors,
}


def _text_of(value: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(value).decode()


def _span(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


LEAVES: Mapping[str, tuple[type, Callable[[Any], Json], Callable[[Json], Any]]] = {
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "Fraction": (fractions.Fraction, str, fractions.Fraction),
    "UUID": (uuid.UUID, str, uuid.UUID),
    "bytes": (bytes, _text_of, base64.b64decode),
    "complex": (complex, lambda v: [v.real, v.imag], lambda v: complex(*v)),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "dtype": (np.dtype, lambda v: v.name, np.dtype),
    "path": (type(Path()), str, Path),
    "pattern": (re.Pattern, lambda v: [v.pattern, v.flags], lambda v: re.compile(*v)),
    "range": (range, _span, lambda v: range(*v)),
    "slice": (slice, _span, lambda v: slice(*v)),
    "tf dtype": (tf.DType, lambda v: v.name, tf.as_dtype),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "timedelta": (
        dt.timedelta,
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: dt.timedelta(*v),
    ),
}
"""Leaves by the tags of their nodes: class, encoder to JSON, and decoder.

Subclasses are not included, except for NumPy's dtypes.
"""

_TAGS = {cls: tag for tag, (cls, _, _) in LEAVES.items()}

PLAIN = frozenset(
    {
        *(type(None), bool, int, float, str, dt.timezone, type(Ellipsis), type(NotImplemented)),
        _Missing,
        *_TAGS,
    }
)
"""Types of immutable values without parts, which are compared by value."""


def leaf_of(value: Any) -> Json:
    """Return the node of a leaf; None for other values, and for leaves without a form in JSON."""
    tag = "dtype" if isinstance(value, np.dtype) else _TAGS.get(type(value))
    zone = getattr(value, "tzinfo", None)
    if tag is None or not isinstance(zone, dt.timezone | None):
        return None
    if tag == "pattern" and not isinstance(value.pattern, str):
        return None
    return {TAG: tag, "v": LEAVES[tag][1](value)}
