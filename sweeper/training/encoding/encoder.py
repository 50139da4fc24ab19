"""Values to JSON beside named tensors: what a checkpoint can hold of what an object tells of itself.

Nothing here can run code when it is read, which is why checkpoints hold no pickle. What has no
plain form is refused with the path that leads to it, so that the error can name it. An object that
two others share is saved once and shared again.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import random
import re
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.inspection.sorts import class_name, fields_of
from sweeper.training.encoding.form import TAG, Json, NotPlainError, Tensors
from sweeper.training.encoding.kinds import (
    FACTORIES,
    can_be_found,
    framework_variables,
    is_plain_object,
    kind_of_container,
)


def encode(value: Any, path: str, tensors: Tensors) -> Json:
    """``value`` as JSON; arrays go into ``tensors`` under names below ``path``.

    Raises:
        NotPlainError: Something in it has no plain form, or contains itself.
    """
    return Encoder(tensors).encode(value, path)


class Encoder:
    """Encodes the values of one capture, and knows which of them share an object.

    Args:
        tensors: Receives the arrays.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []
        """Keeps what was encoded: the id of an object that is gone can be another one's."""
        self._owners: dict[int, list[tuple[str, Any]]] = {}
        self._open: set[int] = set()

    def encode(self, value: Any, path: str) -> Json:
        """``value`` as JSON.

        Args:
            value: Anything; see the module `kinds` for what is plain.
            path: Where it stands, such as ``callbacks/0/state``.

        Raises:
            NotPlainError: Something in it has no plain form, or contains itself.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        simple = _simple(value)
        if simple is not None:
            return simple
        if isinstance(value, np.generic):
            return self._array("scalar", np.asarray(value), path, value)
        known = self._paths.get(id(value))
        if known is not None:
            if id(value) in self._open:
                raise NotPlainError(path, value, "a container that contains itself")
            return {TAG: "same", "as": known}
        self._paths[id(value)] = path
        self._alive.append(value)
        if isinstance(value, np.ndarray):
            return self._ndarray(value, path)
        kind = kind_of_container(value)
        if kind is None:
            return self._object(value, path)
        self._open.add(id(value))
        try:
            return self._container(kind, value, path)
        finally:
            self._open.discard(id(value))

    def _ndarray(self, value: Any, path: str) -> Json:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        for where, other in self._owners.setdefault(id(owner), []):
            if np.may_share_memory(value, other) and value.flags.writeable:
                reason = f"an array that shares its memory with the one at {where}"
                raise NotPlainError(path, value, reason)
        self._owners[id(owner)].append((path, value))
        self._alive.append(owner)
        return self._array("array", np.array(value), path, value)

    def _array(self, tag: str, array: Any, path: str, value: Any) -> Json:
        if array.dtype.kind in "OSUMmV" and array.dtype.name != "bfloat16":
            raise NotPlainError(path, value, f"an array of {array.dtype}, not of numbers")
        key = path
        while key in self._tensors:
            key += "'"
        self._tensors[key] = array
        return {TAG: tag, "t": key}

    def _container(self, kind: str, value: Any, path: str) -> Json:
        node: dict[str, Json] = {TAG: kind}
        if isinstance(value, dict):
            node["v"] = [
                [self.encode(key, f"{path}/key{i}"), self.encode(item, f"{path}/{key!r}")]
                for i, (key, item) in enumerate(value.items())
            ]
            if isinstance(value, defaultdict):
                factory = getattr(value.default_factory, "__name__", "None")
                if value.default_factory is not FACTORIES.get(factory):
                    reason = f"a defaultdict of {value.default_factory!r}"
                    raise NotPlainError(path, value, reason)
                node["factory"] = factory
            return node
        if kind == "namedtuple":
            node["class"] = _findable(value, path)
        members = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        node["v"] = [self.encode(v, f"{path}/{i}") for i, v in enumerate(members)]
        if isinstance(value, deque):
            node["maxlen"] = value.maxlen
        return node

    def _object(self, value: Any, path: str) -> Json:
        import tensorflow as tf

        if isinstance(value, enum.Enum):
            return {TAG: "enum", "class": _findable(value, path), "v": value.name}
        state: Any = None
        if isinstance(value, np.random.Generator):
            state = value.bit_generator.state
        elif type(value) is np.random.RandomState:
            state = value.get_state(legacy=False)
        elif type(value) is random.Random:
            state = value.getstate()
        if state is not None:
            return {TAG: type(value).__name__, "v": self.encode(state, f"{path}/state")}
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return self._array("tensor", value.numpy(), path, value)
        if not is_plain_object(value) or framework_variables(value) is not None:
            raise NotPlainError(path, value)
        attributes = {
            name: self.encode(item, f"{path}/{name}") for name, item in fields_of(value).items()
        }
        return {TAG: "object", "class": class_name(type(value)), "v": attributes}


def _findable(value: Any, path: str) -> str:
    """The name of the value's class; refused where the class could not be found by it."""
    if not can_be_found(type(value)):
        reason = f"a {class_name(type(value))} made during training, of a class that is local"
        raise NotPlainError(path, value, reason)
    return class_name(type(value))


def _simple(value: Any) -> Json:
    """The node of an immutable value without parts, or None."""
    if isinstance(value, bytes | bytearray) and type(value) in (bytes, bytearray):
        text = base64.b64encode(value).decode()
        return {TAG: type(value).__name__, "v": text}
    if isinstance(value, Path):
        return {TAG: "path", "v": str(value)}
    if type(value) is complex:
        return {TAG: "complex", "v": [value.real, value.imag]}
    if type(value) in (dt.datetime, dt.date, dt.time):
        plain_zone = isinstance(getattr(value, "tzinfo", None), dt.timezone | None)
        return {TAG: type(value).__name__, "v": value.isoformat()} if plain_zone else None
    if type(value) is dt.timedelta:
        return {TAG: "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        return {TAG: "pattern", "v": [value.pattern, value.flags]}
    if type(value) in (range, slice):
        return {TAG: type(value).__name__, "v": [value.start, value.stop, value.step]}
    return None
