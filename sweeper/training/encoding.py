"""Plain values, containers, arrays and variables to JSON beside named tensors, and back.

Nothing here can run code when it is read, which is why checkpoints hold no pickle. What has no
plain form is refused with the path that leads to it, so that the error can name it.
"""

from __future__ import annotations

import base64
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Json", "NotPlainError", "Tensors", "decode", "encode", "is_variable"]

Json = Any
Tensors = dict[str, Any]

_TAG = "!"


class NotPlainError(Exception):
    """``path`` leads to ``value``, which has no plain form."""

    def __init__(self, path: str, value: object, reason: str = "") -> None:
        what = reason or f"a {type(value).__module__}.{type(value).__qualname__}"
        super().__init__(f"{path} is {what}")
        self.path = path
        self.what = what


def is_variable(value: object) -> bool:
    """Whether ``value`` is a Keras or a TensorFlow variable."""
    import keras
    import tensorflow as tf

    return isinstance(value, keras.Variable | tf.Variable)


def encode(value: Any, path: str, tensors: Tensors, *, copy: bool = True) -> Json:
    """``value`` as JSON; arrays and variables go into ``tensors`` under names below ``path``.

    Args:
        value: None, bool, int, float, str, bytes, NumPy and TensorFlow values, variables, and
            lists, tuples, sets, dicts and deques of these.
        path: Where ``value`` stands, such as ``callbacks/0/best_weights``.
        tensors: Receives the arrays.
        copy: Whether arrays are copied; without, the caller promises not to write to them.

    Raises:
        NotPlainError: Something in it is none of these, or contains itself.
    """
    return _Encoder(tensors, copy=copy).encode(value, path)


class _Encoder:
    def __init__(self, tensors: Tensors, *, copy: bool) -> None:
        self._tensors = tensors
        self._copy = copy
        self._open: set[int] = set()

    def encode(self, value: Any, path: str) -> Json:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, bytes):
            return {_TAG: "bytes", "v": base64.b64encode(value).decode()}
        if isinstance(value, np.ndarray):
            return self._array("array", np.array(value) if self._copy else value, path, value)
        if isinstance(value, np.generic):
            return self._array("scalar", np.asarray(value), path, value)
        if id(value) in self._open:
            raise NotPlainError(path, value, "a container that contains itself")
        if type(value) in (list, tuple, set, frozenset, deque, dict, OrderedDict):
            self._open.add(id(value))
            try:
                return self._container(value, path)
            finally:
                self._open.discard(id(value))
        return self._framework(value, path)

    def _array(self, tag: str, array: Any, path: str, value: Any) -> Json:
        if array.dtype.kind in "OSUMmV" and array.dtype.name != "bfloat16":
            raise NotPlainError(path, value, f"an array of {array.dtype}, not of numbers")
        self._tensors[path] = array
        return {_TAG: tag, "t": path}

    def _container(self, value: Any, path: str) -> Json:
        kind = type(value).__name__
        if isinstance(value, dict):
            pairs = [
                [self.encode(key, f"{path}/key{i}"), self.encode(item, f"{path}/{key}")]
                for i, (key, item) in enumerate(value.items())
            ]
            return {_TAG: kind, "v": pairs}
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        encoded: dict[str, Json] = {
            _TAG: kind,
            "v": [self.encode(v, f"{path}/{i}") for i, v in enumerate(value)],
        }
        if isinstance(value, deque):
            encoded["maxlen"] = value.maxlen
        return encoded

    def _framework(self, value: Any, path: str) -> Json:
        import tensorflow as tf

        if is_variable(value):
            return self._array("variable", hold(value), path, value)
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return self._array("tensor", value.numpy(), path, value)
        raise NotPlainError(path, value)


def hold(variable: Any) -> Any:
    """The variable's value as it is now; it stays that value when the variable is next written.

    The tensor shares the variable's buffer, and TensorFlow copies a shared buffer before writing
    to it, so holding costs no copy of its own.
    """
    inner = getattr(variable, "value", variable)
    if callable(inner):
        inner = variable
    return inner.read_value()


def decode(encoded: Json, tensors: Mapping[str, Any], fresh: Any = None) -> Any:
    """The inverse of `encode`.

    Args:
        encoded: What `encode` returned.
        tensors: The arrays, by name.
        fresh: The value that stands there now. Variables in it are assigned to, in place, and
            everything else is made anew.

    Raises:
        ValueError: A variable was saved, and ``fresh`` has none of its shape in that place.
    """
    if not isinstance(encoded, dict):
        return encoded
    tag = encoded[_TAG]
    if tag == "bytes":
        return base64.b64decode(encoded["v"])
    if tag in ("array", "scalar", "tensor", "variable"):
        return _decode_array(tag, tensors[encoded["t"]], encoded["t"], fresh)
    if tag in ("dict", "OrderedDict"):
        kept = fresh if isinstance(fresh, dict) else {}
        pairs = [(decode(k, tensors), v) for k, v in encoded["v"]]
        items = [(k, decode(v, tensors, kept.get(k))) for k, v in pairs]
        return OrderedDict(items) if tag == "OrderedDict" else dict(items)
    old = list(fresh) if isinstance(fresh, list | tuple | deque) else []
    old += [None] * (len(encoded["v"]) - len(old))
    values = [decode(v, tensors, o) for v, o in zip(encoded["v"], old, strict=False)]
    if tag == "deque":
        return deque(values, maxlen=encoded["maxlen"])
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag](values)


def _decode_array(tag: str, array: Any, path: str, fresh: Any) -> Any:
    if tag == "array":
        return np.array(array)
    if tag == "scalar":
        return array.dtype.type(array[()])
    if tag == "tensor":
        import tensorflow as tf

        return tf.convert_to_tensor(array)
    if not is_variable(fresh) or tuple(fresh.shape) != tuple(array.shape):
        found = f"a variable of shape {tuple(fresh.shape)}" if is_variable(fresh) else repr(fresh)
        msg = f"{path}: a variable of shape {tuple(array.shape)} was saved, and here is {found}"
        raise ValueError(msg)
    fresh.assign(array)
    return fresh
