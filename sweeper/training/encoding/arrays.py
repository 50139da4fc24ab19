"""NumPy's arrays as tensors of a checkpoint; text, dates and records as their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from sweeper.training.encoding.form import Json, NotPlainError, Tensors, UnplaceableError


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
    """The inverse of `put_array`."""
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
