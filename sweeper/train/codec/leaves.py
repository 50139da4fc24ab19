"""Values without parts: which they are, when two are the same, and their form in JSON.

A leaf is compared by identity first and by its bits otherwise, never by the user's ``==``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import re
import struct
import types
import uuid
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import numpy as np
import tensorflow as tf


class _Missing:
    """Stands where nothing is."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()

PLAIN = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        slice,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
        dt.timezone,
        decimal.Decimal,
        fractions.Fraction,
        uuid.UUID,
        re.Pattern,
        type(Ellipsis),
        type(NotImplemented),
        _Missing,
    }
)
"""Types of immutable values without parts, which are compared by value."""


def is_plain(value: object) -> bool:
    """Return whether ``value`` is a leaf with a form of its own in JSON."""
    cls = type(value)
    return cls in PLAIN or isinstance(value, np.generic | PurePath | tf.DType | np.dtype)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, or leaves or tuples of leaves with the same bits."""
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


def _same_methods(one: Any, other: Any) -> bool:
    return one.__self__ is other.__self__ and one.__func__ is other.__func__


def _same_scalars(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _same_floats(one: float, other: float) -> bool:
    return one == other != 0.0 or struct.pack("d", one) == struct.pack("d", other)


def _same_complex(one: complex, other: complex) -> bool:
    return _same_floats(one.real, other.real) and _same_floats(one.imag, other.imag)


def _same_tensors(one: Any, other: Any) -> bool:
    if not hasattr(one, "numpy") or not hasattr(other, "numpy"):
        return False
    a, b = np.asarray(one), np.asarray(other)
    if a.dtype.kind == "O":
        return a.shape == b.shape and bool(a.tolist() == b.tolist())
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    float: _same_floats,
    complex: _same_complex,
    tuple: _same_parts,
    frozenset: _same_parts,
    np.generic: _same_scalars,
    types.MethodType: _same_methods,
    PurePath: _equal,
    tf.DType: _equal,
    np.dtype: _equal,
    tf.TensorShape: _equal,
    tf.Tensor: _same_tensors,
}


AS_TEXT = frozenset({decimal.Decimal, fractions.Fraction, uuid.UUID})
"""Types of values that are written as their text."""


def hashes_alike(value: object) -> bool:
    """Return whether the hash comes of what the value is, and not of where it lies in memory."""
    if isinstance(value, tuple | frozenset):
        return all(map(hashes_alike, value))
    if value is None or value is Ellipsis or value is NotImplemented:
        return False
    return type(value) in PLAIN or isinstance(value, np.generic)
