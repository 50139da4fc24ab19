"""Encoder of Python values as JSON and named tensors, for checkpoints.

Decoding runs no code, unlike unpickling. A value that cannot be encoded is refused with its path. An
object that occurs several times is encoded where it first occurs, and as a reference elsewhere. So it
is one object after decoding, too, and cycles end.
"""

from __future__ import annotations

import enum
import random
import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.errors import UncapturableError
from sweeper.inspection import keras_names
from sweeper.inspection.sorts import (
    class_name,
    fields_of,
    framework_variables,
    is_written_in_python,
    module_of,
)
from sweeper.train.codec.form import (
    OBJECT_ARRAY,
    TAG,
    Json,
    NotPlainError,
    Tensors,
    base_of,
    leaf_of,
    name_of,
    put_array,
)

_OPEN = (types.SimpleNamespace,)
"""Classes written in C whose objects have only attributes."""

_MANY = 256
"""Minimum length of a list of numbers that is written as an array."""


def encode(value: Any, path: str, tensors: Tensors) -> Json:
    """Return ``value`` as JSON; arrays go into ``tensors`` under names that begin with ``path``.

    Raises:
        NotPlainError: Something in it has no plain form.
    """
    return Encoder(tensors).encode(value, path)


def encode_own_state(encoder: Encoder, obj: Any, shown: str, path: str) -> Json:
    """Return the result of ``obj.get_state()`` as JSON; ``shown`` names the object.

    Raises:
        UncapturableError: Something in the result has no plain form.
    """
    try:
        return encoder.encode(obj.get_state(), path)
    except NotPlainError as error:
        msg = (
            f"{shown}: get_state() returned something that a checkpoint cannot hold: {error}; "
            "return numbers, strings, arrays and containers of these"
        )
        raise UncapturableError(msg) from None


class Encoder:
    """Encoder of the values of one capture, with their shared objects.

    Args:
        tensors: Receives the arrays.
        prefix: What their names begin with, before the path.
    """

    def __init__(self, tensors: Tensors, prefix: str = "") -> None:
        self._tensors = tensors
        self._prefix = prefix
        self._written: dict[int, tuple[dict[str, Json], str]] = {}
        self._ids: set[str] = set()
        self._copied: dict[int, list[tuple[str, Any]]] = {}
        """The written arrays and their paths, by the array that owns the memory."""
        self._alive: list[Any] = []
        """References to encoded objects, so that their ids are not reused."""

    def encode(self, value: Any, path: str) -> Json:
        """Return ``value`` as JSON; ``path``, such as ``callbacks/0/state``, is for errors and tensors.

        Raises:
            NotPlainError: Something in it has no plain form.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        immutable = self._immutable(value, path)
        if immutable is not None:
            return immutable
        if id(value) in self._written:
            node, where = self._written[id(value)]
            if TAG not in node:
                raise NotPlainError(path, value, "an object that contains itself")
            if "id" not in node:
                node["id"] = self._unused(where, self._ids)
                self._ids.add(node["id"])
            return {TAG: "same", "as": node["id"]}
        node = {}
        self._written[id(value)] = node, path
        self._alive.append(value)
        self._fill(node, value, path)
        return node

    def _immutable(self, value: Any, path: str) -> Json:
        """Return the node of an immutable value; None for others."""
        if isinstance(value, enum.Enum):
            return {TAG: "enum", "class": self._class(type(value), path), "v": value.name}
        if isinstance(value, tuple):
            parts = self._items(list(tuple.__iter__(value)), path)
            named = {} if type(value) is tuple else {"class": self._class(type(value), path)}
            return {TAG: "tuple", "v": parts, **named}
        if isinstance(value, frozenset):
            self._refuse_set(value, path)
            return {TAG: "frozenset", "v": self._items([*value], path)}
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, np.generic):
            return {TAG: "scalar", **self._array(np.asarray(value), path)}
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return {TAG: "tensor", **self._array(value.numpy(), path)}
        return leaf_of(value)

    def _fill(self, node: dict[str, Json], value: Any, path: str) -> None:
        """Encode an object that can be shared into ``node``."""
        if isinstance(value, np.ndarray):
            self._fill_array(node, value, path)
        elif isinstance(value, dict | list | deque):
            self._fill_container(node, value, path)
        elif isinstance(value, set):
            self._refuse_set(value, path)
            node[TAG] = "set"
        elif isinstance(value, np.random.Generator) or type(value) in _GENERATORS:
            state = self.encode(state_of_generator(value), f"{path}/state")
            seeds = seeds_of(value)
            if seeds is not None:
                spawned = {"n_children_spawned": int(seeds.n_children_spawned)}
                node["seeds"] = self.encode({**seeds.state, **spawned}, f"{path}/seeds")
            node.update({TAG: type(value).__name__, "v": state})
        else:
            self._fill_object(node, value, path)

    def _fill_object(self, node: dict[str, Json], value: Any, path: str) -> None:
        """Encode an object whose state is only in its attributes."""
        cls = type(value)
        if not is_written_in_python(cls) and cls not in _OPEN:
            raise NotPlainError(path, value)
        if framework_variables(value) is not None:
            reason = f"a {class_name(cls)} made during training; make it in the factory"
            raise NotPlainError(path, value, reason)
        if module_of(cls).partition(".")[0] in ("keras", "tensorflow"):
            raise NotPlainError(path, value)
        node.update({TAG: "object", "class": self._class(cls, path)})
        node["v"] = self._attributes(value, path)

    def _fill_array(self, node: dict[str, Json], value: Any, path: str) -> None:
        if value.dtype == object:
            raise NotPlainError(path, value, *OBJECT_ARRAY)
        owner = owner_of(value)
        for where, other in self._copied.setdefault(id(owner), []):
            if np.may_share_memory(value, other) and value.flags.writeable:
                reason = f"an array that shares its memory with the one at {where}"
                raise NotPlainError(path, value, reason)
        self._copied[id(owner)].append((path, value))
        self._alive.append(owner)
        node.update({TAG: "array", **self._array(value, path)})
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            node["order"] = "F"

    def _fill_container(self, node: dict[str, Json], value: Any, path: str) -> None:
        kind: Any = base_of(type(value))
        node[TAG] = next(each.__name__ for each in (dict, list, deque) if issubclass(kind, each))
        if "keras" in module_of(type(value)):
            self._fill_tracked(node, value)
        elif type(value) not in (dict, list, deque):
            node["class"] = self._class(type(value), path)
            node["attributes"] = self._attributes(value, path)
        if isinstance(value, deque):
            node["maxlen"] = value.maxlen
        if isinstance(value, dict):
            node["v"] = self._pairs(list(kind.items(value)), path)
        else:
            node.update(self._ordered(list(kind.__iter__(value)), path))

    def _fill_tracked(self, node: dict[str, Json], value: Any) -> None:
        """Encode the kind of a Keras container; nothing in this class."""

    def _pairs(self, items: Sequence[tuple[Any, Any]], path: str) -> list[Json]:
        written = []
        for key, item in items:
            where = f"{path}[{key!r:.60}]"
            written.append([self.encode(key, where), self.encode(item, where)])
        return written

    def _items(self, values: Sequence[Any], path: str) -> list[Json]:
        return [self.encode(each, f"{path}[{index}]") for index, each in enumerate(values)]

    def _ordered(self, values: list[Any], path: str) -> dict[str, Json]:
        """Return the values, or an array if they are many numbers of one type."""
        kinds = set(map(type, values)) if len(values) >= _MANY else set()
        if kinds == {float}:
            return {"packed": self._array(np.array(values, np.float64), path)}
        if kinds == {int} and all(-(1 << 62) < v < 1 << 62 for v in values):
            return {"packed": self._array(np.array(values, np.int64), path)}
        return {"v": self._items(values, path)}

    def _refuse_set(self, obj: set[Any] | frozenset[Any], path: str) -> None:
        """Refuse a set, but for a new empty one and a frozenset of at most one member.

        The order of other sets depends on the hash table, which no API shows or restores.
        """
        new = type(obj) is set and set.__sizeof__(obj) == _NEW_SET and not obj
        if not new and not (type(obj) is frozenset and len(obj) <= 1):
            raise NotPlainError(path, obj, *SETS)

    def _attributes(self, value: Any, path: str) -> dict[str, Json]:
        return {
            name: self.encode(item, f"{path}.{name}")
            for name, item in list(fields_of(value).items())
            if not name.startswith(keras_names.TRACKING_PREFIXES)
        }

    def _class(self, cls: type, path: str) -> Json:
        return self._named(
            cls, path, f"a {class_name(cls)}, whose class cannot be found by its name"
        )

    def _named(self, obj: Any, path: str, otherwise: str) -> Json:
        name = name_of(obj)
        if name is None:
            raise NotPlainError(path, obj, otherwise)
        return {TAG: "named", "v": name}

    def _array(self, array: Any, path: str) -> dict[str, Json]:
        written: dict[str, Json] = put_array(np.asarray(array), self._tensors, self._key(path))
        return written

    def _key(self, path: str) -> str:
        return self._unused(f"{self._prefix}/{path}" if self._prefix else path, self._tensors)

    @staticmethod
    def _unused(name: str, used: Any) -> str:
        while name in used:
            name += "'"
        return name


SETS = (
    "a set, whose order of iteration depends on how it was filled",
    "use a dict, which keeps its order: dict.fromkeys(…); instead of a frozenset a sorted tuple",
)
"""Description of a set in a refusal, and what to use instead."""

_NEW_SET = set.__sizeof__(set())
"""Size of a set that never had more than four members, or was cleared."""

_GENERATORS = (random.Random, np.random.RandomState)


def owner_of(array: Any) -> Any:
    """Return the array that owns the memory of ``array``."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def state_of_generator(generator: Any) -> Any:
    """Return the state of a Python or NumPy generator, from its public interface."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.state


def seeds_of(generator: Any) -> Any:
    """Return the seed sequence from which a NumPy generator spawns others; None if it has none."""
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    elif isinstance(generator, np.random.RandomState):
        generator = generator._bit_generator
    seeds = getattr(generator, "seed_seq", None)
    return seeds if isinstance(seeds, np.random.SeedSequence) else None
