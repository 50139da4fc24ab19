"""Values to JSON beside named tensors: what a checkpoint can hold of a callback or a model.

Nothing here can run code when it is read, which is why checkpoints hold no pickle. What has no
plain form is refused with the path that leads to it, so that the error can name it.

Objects keep who they are. One that stands where it stood when training began (`Origins`) is filled
again in place, so that whoever else holds it sees it restored; one that two places share is saved
once and shared again. Functions are seen through: what one keeps in its closure is saved with it.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import json
import random
import re
from collections import defaultdict, deque
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sweeper.training.encoding.kinds import (
    FACTORIES,
    attributes_of,
    can_be_found,
    class_name,
    closure_of,
    framework_variables,
    is_code,
    is_constant,
    is_plain_object,
    is_variable,
    kind_of_container,
)
from sweeper.training.encoding.origins import (
    TAG,
    Json,
    NotPlainError,
    Origins,
    Tensors,
    digest_of,
    hold,
)

__all__ = ["Encoder", "encode", "fingerprint"]

_FILLED_IN_PLACE = frozenset(
    {
        "Counter",
        "Generator",
        "OrderedDict",
        "Random",
        "RandomState",
        "array",
        "defaultdict",
        "deque",
        "dict",
        "list",
        "object",
        "set",
    }
)
_LARGE = 1 << 16
"""Bytes from which an array that has not changed is known by its digest instead of saved again."""


def encode(value: Any, path: str, tensors: Tensors, *, copy: bool = True) -> Json:
    """``value`` as JSON; arrays and variables go into ``tensors`` under names below ``path``.

    Raises:
        NotPlainError: Something in it has no plain form, or contains itself.
    """
    return Encoder(tensors).encode(value, path, copy=copy)


def fingerprint(value: Any, path: str, encoder: Encoder | None = None) -> str:
    """A text that is equal for equal values.

    Raises:
        NotPlainError: Something in it has no plain form.
    """
    tensors: Tensors = {}
    used = Encoder(tensors) if encoder is None else encoder.scratch(tensors)
    told = json.dumps(used.encode(value, path, copy=False), default=repr)
    return told + "".join(digest_of(array) for array in tensors.values())


class Encoder:
    """Encodes the values of one capture, and knows which of them share an object.

    Args:
        tensors: Receives the arrays.
        origins: What stood where when training began.
        named: Labels of objects that are only referred to, by id: the callbacks themselves.
        covered: Ids of variables that another component captures.
    """

    def __init__(
        self,
        tensors: Tensors,
        origins: Origins | None = None,
        *,
        named: Mapping[int, str] | None = None,
        covered: Container[int] = (),
    ) -> None:
        self._tensors = tensors
        self._origins = origins
        self._named = {} if named is None else named
        self._covered = covered
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []
        """Keeps what was encoded: the id of an object that is gone can be another one's."""
        self._owners: dict[int, list[tuple[str, Any]]] = {}
        self._open: set[int] = set()

    def scratch(self, tensors: Tensors) -> Encoder:
        """An encoder of the same surroundings that shares nothing with this one's objects."""
        return Encoder(tensors, named=self._named, covered=self._covered)

    def encode(self, value: Any, path: str, *, copy: bool = True) -> Json:
        """``value`` as JSON.

        Args:
            value: Anything; see the module `kinds` for what is plain.
            path: Where it stands, such as ``callbacks/0/best_weights``.
            copy: Whether arrays are copied; without, the caller promises not to write to them.

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
        label = self._named.get(id(value))
        if label is not None:
            return {TAG: "named", "v": label}
        known = self._paths.get(id(value))
        if known is not None:
            if id(value) in self._open:
                raise NotPlainError(path, value, "a container that contains itself")
            return {TAG: "same", "as": known}
        self._paths[id(value)] = path
        self._alive.append(value)
        kept = self._origins is not None and self._origins.kept(path, value)
        node = self._node(value, path, kept=kept, copy=copy)
        return {**node, "k": 1} if kept and node[TAG] in _FILLED_IN_PLACE else node

    def _node(self, value: Any, path: str, *, kept: bool, copy: bool) -> dict[str, Json]:
        if isinstance(value, np.ndarray):
            return self._ndarray(value, path, kept=kept, copy=copy)
        kind = kind_of_container(value)
        if kind is not None:
            self._open.add(id(value))
            try:
                return self._container(kind, value, path, copy=copy)
            finally:
                self._open.discard(id(value))
        if isinstance(value, enum.Enum):
            self._findable(value, path)
            return {TAG: "enum", "class": class_name(type(value)), "v": value.name}
        generator = self._generator(value, path)
        if generator is not None:
            return generator
        variables = framework_variables(value)
        if variables is not None:
            return self._variables(value, variables, path)
        return self._object(value, path, kept=kept, copy=copy)

    def _ndarray(self, value: Any, path: str, *, kept: bool, copy: bool) -> dict[str, Json]:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        for where, other in self._owners.setdefault(id(owner), []):
            if np.may_share_memory(value, other) and value.flags.writeable:
                reason = f"an array that shares its memory with the one at {where}"
                raise NotPlainError(path, value, reason)
        self._owners[id(owner)].append((path, value))
        self._alive.append(owner)
        if kept and self._origins is not None and value.nbytes >= _LARGE:
            if value.dtype.kind in "OSUMmV":
                return self._array("array", value, path, value)
            digest = digest_of(value)
            if not self._origins.known:
                self._origins.digests.setdefault(path, digest)
            if self._origins.digests.get(path) == digest:
                return {TAG: "unchanged", "v": digest}
        return self._array("array", np.array(value) if copy else value, path, value)

    def _array(self, tag: str, array: Any, path: str, value: Any) -> dict[str, Json]:
        if array.dtype.kind in "OSUMmV" and array.dtype.name != "bfloat16":
            raise NotPlainError(path, value, f"an array of {array.dtype}, not of numbers")
        return {TAG: tag, "t": self._put(array, path)}

    def _put(self, array: Any, path: str) -> str:
        key = path
        while key in self._tensors:
            key += "'"
        self._tensors[key] = array
        return key

    def _container(self, kind: str, value: Any, path: str, *, copy: bool) -> dict[str, Json]:
        node: dict[str, Json] = {TAG: kind}
        if isinstance(value, dict):
            node["v"] = [
                [
                    self.encode(key, f"{path}/key{i}", copy=copy),
                    self.encode(item, f"{path}/{key!r}", copy=copy),
                ]
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
            self._findable(value, path)
            node["class"] = class_name(type(value))
        members = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        node["v"] = [self.encode(v, f"{path}/{i}", copy=copy) for i, v in enumerate(members)]
        if isinstance(value, deque):
            node["maxlen"] = value.maxlen
        return node

    def _generator(self, value: Any, path: str) -> dict[str, Json] | None:
        state: Any
        if isinstance(value, np.random.Generator):
            state = value.bit_generator.state
        elif type(value) is np.random.RandomState:
            state = value.get_state(legacy=False)
        elif type(value) is random.Random:
            state = value.getstate()
        else:
            return None
        return {TAG: type(value).__name__, "v": self.encode(state, f"{path}/state")}

    def _variables(self, value: Any, variables: list[Any], path: str) -> dict[str, Json]:
        own = [v for v in variables if id(v) not in self._covered]
        if own and self._origins is not None and not self._origins.kept(path, value):
            reason = f"a {class_name(type(value))} made during training"
            raise NotPlainError(path, value, reason)
        if is_variable(value):
            if not own:
                return {TAG: "constant"}
            return {TAG: "variable", "t": self._put(hold(value), path)}
        saved = [self._put(hold(v), f"{path}/{i:05d}") for i, v in enumerate(own)]
        return {TAG: "variables", "class": class_name(type(value)), "v": saved}

    def _object(self, value: Any, path: str, *, kept: bool, copy: bool) -> dict[str, Json]:
        import tensorflow as tf

        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return self._array("tensor", value.numpy(), path, value)
        if is_code(value) or is_constant(value):
            if self._origins is not None and not kept:
                reason = f"a {class_name(type(value))} that was set during training"
                raise NotPlainError(path, value, reason)
            return self._function(value, path, copy=copy) if is_code(value) else {TAG: "constant"}
        if not is_plain_object(value):
            raise NotPlainError(path, value)
        if self._origins is not None and not kept:
            self._findable(value, path)
        attributes = {
            name: self.encode(item, f"{path}/{name}", copy=copy)
            for name, item in attributes_of(value).items()
        }
        return {TAG: "object", "class": class_name(type(value)), "v": attributes}

    def _function(self, value: Any, path: str, *, copy: bool) -> dict[str, Json]:
        closure = closure_of(value)
        if isinstance(closure, str):
            raise NotPlainError(path, value, closure)
        cells: dict[str, Json] = {}
        for name, content in closure.items():
            before = dict(self._tensors)
            try:
                cells[name] = self.encode(content, f"{path}/<{name}>", copy=copy)
            except NotPlainError:
                # A closure holds surroundings: a trial, a connection. State is in plain values.
                for key in self._tensors.keys() - before.keys():
                    del self._tensors[key]
                cells[name] = {TAG: "constant"}
        return {TAG: "function", "v": cells}

    def _findable(self, value: Any, path: str) -> None:
        """Refuse what could not be made again: its class has to be found by its name."""
        origin = None if self._origins is None else self._origins.objects.get(path)
        if type(origin) is not type(value) and not can_be_found(type(value)):
            reason = f"a {class_name(type(value))} made during training, of a class that is local"
            raise NotPlainError(path, value, reason)


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
