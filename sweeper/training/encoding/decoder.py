"""The inverse of the encoder: values from JSON and named tensors.

Nothing is imported, unpickled or called by name. An object is only made of a class of a module that
is loaded already, and no code of the class runs.
"""

from __future__ import annotations

import base64
import datetime as dt
import random
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.training.encoding.form import TAG, Json, UnplaceableError
from sweeper.training.encoding.kinds import FACTORIES, find_class

_BIT_GENERATORS = frozenset({"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"})
_SEQUENCES: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: Mapping[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def decode(encoded: Json, tensors: Mapping[str, Any], path: str = "") -> Any:
    """The inverse of `encode`.

    Args:
        encoded: What `encode` returned.
        tensors: The arrays, by name.
        path: The same as was given to `encode`; shared objects are found again by it.

    Raises:
        UnplaceableError: A tensor or a class is not there.
    """
    return Decoder(tensors).decode(encoded, path)


class Decoder:
    """Decodes the values of one capture; objects that were shared are shared again.

    Args:
        tensors: The arrays, by name.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._made: dict[str, Any] = {}

    def decode(self, node: Json, path: str) -> Any:
        """The value of ``node``, which was encoded at ``path``.

        Raises:
            UnplaceableError: A tensor or a class is not there.
        """
        if not isinstance(node, dict):
            return node
        if node[TAG] == "same":
            return self._made.get(node["as"])
        made = self._value(node[TAG], node, path)
        self._made.setdefault(path, made)
        return made

    def _value(self, tag: str, node: Any, path: str) -> Any:
        simple = _simple(tag, node)
        if simple is not None:
            return simple
        if tag in ("array", "scalar", "tensor"):
            return self._array(tag, node)
        if tag in _DICTS or tag == "defaultdict":
            return self._dict(tag, node, path)
        if tag in _SEQUENCES or tag in ("deque", "namedtuple"):
            return self._sequence(tag, node, path)
        if tag in ("Generator", "RandomState", "Random"):
            return new_generator(tag, self.decode(node["v"], f"{path}/state"))
        cls: Any = _class(node, path)
        if tag == "enum":
            return cls[node["v"]]
        made = self._made[path] = object.__new__(cls)
        for name, item in node["v"].items():
            object.__setattr__(made, name, self.decode(item, f"{path}/{name}"))
        return made

    def _dict(self, tag: str, node: Any, path: str) -> Any:
        items = []
        for index, (key_node, item) in enumerate(node["v"]):
            key = self.decode(key_node, f"{path}/key{index}")
            items.append((key, self.decode(item, f"{path}/{key!r}")))
        if tag == "defaultdict":
            return defaultdict(FACTORIES[node["factory"]], items)
        return _DICTS[tag](dict(items))

    def _sequence(self, tag: str, node: Any, path: str) -> Any:
        values = [self.decode(item, f"{path}/{i}") for i, item in enumerate(node["v"])]
        if tag == "namedtuple":
            return tuple.__new__(_class(node, path), values)
        return deque(values, node["maxlen"]) if tag == "deque" else _SEQUENCES[tag](values)

    def _array(self, tag: str, node: Any) -> Any:
        if node["t"] not in self._tensors:
            msg = f"the tensor {node['t']!r} is missing"
            raise UnplaceableError(msg)
        array = self._tensors[node["t"]]
        if tag == "scalar":
            return array.dtype.type(array[()])
        if tag == "tensor":
            import tensorflow as tf

            return tf.convert_to_tensor(array)
        return np.array(array)


def new_generator(kind: str, state: Any, seeds: Any = None) -> Any:
    """A random generator of Python's or NumPy's in ``state``.

    Args:
        kind: ``"Random"``, ``"RandomState"`` or ``"Generator"``.
        state: What it tells of itself.
        seeds: What a ``Generator`` spawns others from.

    Raises:
        UnplaceableError: Of no kind of NumPy's.
    """
    if kind == "Random":
        made: Any = random.Random()  # noqa: S311 - what the user had, and no secret
        made.setstate(state)
    elif kind == "RandomState":
        made = np.random.RandomState()
        made.set_state(state)
    else:
        name = state["bit_generator"]
        if name not in _BIT_GENERATORS:
            msg = f"a generator of the unknown kind {name!r} was held"
            raise UnplaceableError(msg)
        made = np.random.Generator(getattr(np.random, name)(seeds))
        made.bit_generator.state = state
    return made


def _class(node: Any, path: str) -> type:
    found = find_class(node["class"])
    if found is None:
        msg = f"{path} was a {node['class']}, and no such class is there now"
        raise UnplaceableError(msg)
    return found


def _simple(tag: str, node: Any) -> Any:
    value = node.get("v")
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag](base64.b64decode(value))
    if tag == "path":
        return Path(value)
    if tag == "complex":
        return complex(*value)
    if tag in ("datetime", "date", "time"):
        return getattr(dt, tag).fromisoformat(value)
    if tag == "timedelta":
        return dt.timedelta(*value)
    if tag == "pattern":
        return re.compile(*value)
    if tag in ("range", "slice"):
        return {"range": range, "slice": slice}[tag](*value)
    return None
