"""Decoder of values from JSON and named tensors, the inverse of the encoder.

Nothing is imported, unpickled or called by name, and no method of the user's is run. An object is
created by `object.__new__` of a class in a module that is already loaded, and its attributes are set
without its ``__setattr__``.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sweeper.inspection.sorts import set_field
from sweeper.train.codec.form import (
    LEAVES,
    TAG,
    Json,
    UnplaceableError,
    base_of,
    find_named,
    take_array,
)

_BIT_GENERATORS = frozenset({"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"})


def decode(encoded: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `encode`, with the arrays in ``tensors``.

    Raises:
        UnplaceableError: A tensor or a class does not exist.
    """
    return Decoder(tensors).decode(encoded)


class Decoder:
    """Decoder of the values of one capture, which restores shared objects."""

    readers: Mapping[str, Callable[[Any, Any], Any]]
    """Methods that decode a node, by its tag."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self._made: dict[str, Any] = {}

    def decode(self, node: Json) -> Any:
        """Return the value of ``node``.

        Raises:
            UnplaceableError: It refers to something that does not exist.
        """
        if not isinstance(node, dict):
            return node
        read = self.readers.get(node[TAG])
        if read is None:
            msg = f"it contains a value of the unknown kind {node[TAG]!r}"
            raise UnplaceableError(msg)
        return self.keep(node, read(self, node))

    def keep(self, node: Json, made: Any) -> Any:
        """Record the object of ``node`` for references to it, and return it."""
        if "id" in node:
            self._made[node["id"]] = made
        return made

    def _same(self, node: Json) -> Any:
        if node["as"] not in self._made:
            msg = f"it contains {node['as']!r} a second time, and nothing is there the first time"
            raise UnplaceableError(msg)
        return self._made[node["as"]]

    def class_of(self, node: Json) -> Any:
        """Return the class of the object of ``node``."""
        cls = self.decode(node["class"])
        if not isinstance(cls, type):
            msg = f"{node['class']} was a class when the checkpoint was written, and is {cls!r} now"
            raise UnplaceableError(msg)
        return cls

    def _named(self, node: Json) -> Any:
        found = find_named(node["v"])
        if found is None:
            msg = f"it contains {node['v'].replace(':', '.')}, which does not exist now"
            raise UnplaceableError(msg)
        return found

    def _tuple(self, node: Json) -> Any:
        parts = [self.decode(each) for each in node["v"]]
        return tuple.__new__(self.class_of(node), parts) if "class" in node else tuple(parts)

    def container_class(self, node: Json) -> Any:
        """Return the class of a container that is not Python's own; None for Python's."""
        return self.class_of(node) if "class" in node else None

    def _container(self, node: Json) -> Any:
        cls = self.container_class(node) or {"dict": dict, "list": list, "deque": deque}[node[TAG]]
        base: Any = base_of(cls)
        made = self.keep(node, base.__new__(cls))
        base.__init__(made, *([(), node["maxlen"]] if base is deque else []))
        if node[TAG] == "dict":
            for key, item in node["v"]:
                base.__setitem__(made, self.decode(key), self.decode(item))
        else:
            base.extend(made, self.ordered(node))
        return self.with_attributes(made, node.get("attributes", {}))

    def ordered(self, node: Json) -> list[Any]:
        """Return the items of a sequence, which may be in an array."""
        if "packed" in node:
            packed: list[Any] = take_array(node["packed"], self.tensors).tolist()
            return packed
        return [self.decode(each) for each in node["v"]]

    def with_attributes(self, made: Any, attributes: Mapping[str, Json]) -> Any:
        """Set the attributes of ``made``, and return it."""
        for name, value in [(n, self.decode(each)) for n, each in attributes.items()]:
            set_field(made, name, value)
        return made

    def _object(self, node: Json) -> Any:
        cls = self.class_of(node)
        made = cls() if cls is types.SimpleNamespace else object.__new__(cls)
        return self.with_attributes(self.keep(node, made), node["v"])

    def _array(self, node: Json) -> Any:
        return np.array(take_array(node, self.tensors), order=node.get("order", "C"))

    def _tensor(self, node: Json) -> Any:
        return tf.convert_to_tensor(take_array(node, self.tensors))

    def _generator(self, node: Json) -> Any:
        state = self.decode(node["v"])
        made: Any
        if node[TAG] == "Random":
            made = random.Random()  # noqa: S311 - the user's generator, not a secret
        elif node[TAG] == "RandomState":
            made = np.random.RandomState()
        elif state["bit_generator"] not in _BIT_GENERATORS:
            msg = f"it contains a generator of the unknown kind {state['bit_generator']!r}"
            raise UnplaceableError(msg)
        else:
            seeds = self.decode(node["seeds"]) if "seeds" in node else None
            sequence = None if seeds is None else np.random.SeedSequence(**seeds)
            made = np.random.Generator(getattr(np.random, state["bit_generator"])(sequence))
        set_state_of_generator(made, state)
        return made


def set_state_of_generator(generator: Any, state: Any) -> None:
    """Set the state of a Python or NumPy generator to the result of `state_of_generator`."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.state = state


Decoder.readers = {
    **dict.fromkeys(("dict", "list", "deque"), Decoder._container),
    **dict.fromkeys(("Generator", "RandomState", "Random"), Decoder._generator),
    **dict.fromkeys(LEAVES, lambda _, node: LEAVES[node[TAG]][2](node["v"])),
    "array": Decoder._array,
    "enum": lambda d, node: d.class_of(node)[node["v"]],
    "frozenset": lambda d, node: frozenset(d.ordered(node)),
    "named": Decoder._named,
    "object": Decoder._object,
    "set": lambda _, __: set(),
    "same": Decoder._same,
    "scalar": lambda d, node: take_array(node, d.tensors)[()],
    "tensor": Decoder._tensor,
    "tuple": Decoder._tuple,
}
