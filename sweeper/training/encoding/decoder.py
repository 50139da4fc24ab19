"""The inverse of the encoder: values from JSON and named tensors.

Nothing is imported, unpickled or called by name. A class is only used where a fresh value of it
stands in the same place, or where it is a dataclass, named tuple or enumeration of a module that is
loaded already, and no code of it runs.
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

from sweeper.training.encoding.kinds import (
    FACTORIES,
    attributes_of,
    class_name,
    closure_of,
    find_class,
    framework_variables,
    inner_function,
    is_variable,
)
from sweeper.training.encoding.origins import TAG, Json, Origins, UnplaceableError, digest_of

__all__ = ["Decoder", "decode"]

_BIT_GENERATORS = frozenset({"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"})
_SEQUENCES: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: Mapping[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def decode(encoded: Json, tensors: Mapping[str, Any], fresh: Any = None) -> Any:
    """The inverse of `encode`.

    Args:
        encoded: What `encode` returned.
        tensors: The arrays, by name.
        fresh: The value that stands there now; variables in it are assigned to.

    Raises:
        UnplaceableError: A value was saved that has no place in ``fresh``.
    """
    return Decoder(tensors).decode(encoded, "", fresh)


class Decoder:
    """Decodes the values of one capture; objects that were shared are shared again.

    Args:
        tensors: The arrays, by name.
        origins: Told what stands where; what is filled in place stays the origin.
        named: The objects that were only referred to, by label.
        covered: Ids of variables that another component restores.
        dry: Only look whether everything has its place, and change nothing.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        origins: Origins | None = None,
        *,
        named: Mapping[str, Any] | None = None,
        covered: frozenset[int] = frozenset(),
        dry: bool = False,
    ) -> None:
        self._tensors = tensors
        self._origins = Origins() if origins is None else origins
        self._named = {} if named is None else named
        self._covered = covered
        self._dry = dry
        self._made: dict[str, Any] = {}

    def decode(self, node: Json, path: str, fresh: Any = None) -> Any:
        """The value of ``node``, which was encoded at ``path``.

        Args:
            node: What `Encoder.encode` returned.
            path: The same path.
            fresh: The value that stands there now.

        Raises:
            UnplaceableError: A value was saved that has no place in ``fresh``.
        """
        if not isinstance(node, dict):
            return node
        tag = node[TAG]
        if tag == "same":
            return self._made.get(node["as"])
        if tag == "named":
            if node["v"] not in self._named:
                msg = f"{path} was {node['v']}, which is not there"
                raise UnplaceableError(msg)
            return self._named[node["v"]]
        if fresh is not None and not self._dry:
            self._origins.objects[path] = fresh
        place = fresh if node.get("k") else None
        made = self._value(tag, node, path, fresh, place)
        self._made.setdefault(path, made)
        return made

    def _value(self, tag: str, node: Any, path: str, fresh: Any, place: Any) -> Any:
        simple = _simple(tag, node)
        if simple is not None:
            return simple
        if tag in ("array", "scalar", "tensor", "variable", "unchanged"):
            return self._array(tag, node, path, fresh, place)
        if tag in _DICTS or tag == "defaultdict":
            return self._dict(tag, node, path, fresh, place)
        if tag in _SEQUENCES or tag in ("deque", "namedtuple"):
            return self._sequence(tag, node, path, fresh, place)
        if tag in ("Generator", "RandomState", "Random"):
            return self._generator(tag, node, path, place)
        if tag == "variables":
            return self._variables(node, path, fresh)
        if tag == "constant":
            return fresh
        if tag == "enum":
            cls: Any = _class(node, fresh, path)
            return cls[node["v"]]
        if tag == "function":
            return self._function(node, path, fresh)
        return self._object(node, path, fresh, place)

    def _tensor(self, key: str) -> Any:
        if key not in self._tensors:
            msg = f"the tensor {key!r} is missing"
            raise UnplaceableError(msg)
        return self._tensors[key]

    def _array(self, tag: str, node: Any, path: str, fresh: Any, place: Any) -> Any:
        if tag == "unchanged":
            if not isinstance(fresh, np.ndarray) or digest_of(fresh) != node["v"]:
                msg = f"{path} was an array that never changed, and is another one now"
                raise UnplaceableError(msg)
            self._origins.digests[path] = node["v"]
            return fresh
        array = self._tensor(node["t"])
        if tag == "variable":
            self._assign(fresh, array, path)
            return fresh
        if tag == "scalar":
            return array.dtype.type(array[()])
        if tag == "tensor":
            import tensorflow as tf

            return tf.convert_to_tensor(array)
        if (
            isinstance(place, np.ndarray)
            and place.flags.writeable
            and (place.shape, place.dtype) == (array.shape, array.dtype)
        ):
            if not self._dry:
                place[...] = array
            return place
        return np.array(array)

    def _assign(self, variable: Any, array: Any, path: str) -> None:
        was = f"{np.dtype(array.dtype).name}{list(array.shape)}"
        if not is_variable(variable):
            msg = f"{path} was a variable, {was}, and is {variable!r} now"
            raise UnplaceableError(msg)
        dtype = variable.dtype
        now = f"{getattr(dtype, 'name', dtype)}{list(variable.shape)}"
        if was != now:
            msg = f"{path} was a variable, {was}, and is {now} now"
            raise UnplaceableError(msg)
        if not self._dry:
            variable.assign(array)

    def _dict(self, tag: str, node: Any, path: str, fresh: Any, place: Any) -> Any:
        old = fresh if isinstance(fresh, dict) else {}
        items = []
        for index, (key_node, item) in enumerate(node["v"]):
            key = self.decode(key_node, f"{path}/key{index}")
            items.append((key, self.decode(item, f"{path}/{key!r}", old.get(key))))
        if isinstance(place, dict):
            if not self._dry:
                place.clear()
                place.update(dict(items))
            return place
        if tag == "defaultdict":
            return defaultdict(FACTORIES[node["factory"]], items)
        return _DICTS[tag](dict(items)) if tag == "Counter" else _DICTS[tag](items)

    def _sequence(self, tag: str, node: Any, path: str, fresh: Any, place: Any) -> Any:
        old = list(fresh) if isinstance(fresh, list | tuple | deque) else []
        old += [None] * (len(node["v"]) - len(old))
        values = [self.decode(item, f"{path}/{i}", old[i]) for i, item in enumerate(node["v"])]
        if tag == "namedtuple":
            return tuple.__new__(_class(node, fresh, path), values)
        if isinstance(place, list | deque | set):
            if not self._dry:
                place.clear()
                (place.update if isinstance(place, set) else place.extend)(values)
            return place
        return deque(values, maxlen=node["maxlen"]) if tag == "deque" else _SEQUENCES[tag](values)

    def _generator(self, tag: str, node: Any, path: str, place: Any) -> Any:
        state = self.decode(node["v"], f"{path}/state")
        if type(place).__name__ != tag:
            place = self._new_generator(tag, state, path)
        if self._dry:
            return place
        if tag == "Generator":
            place.bit_generator.state = state
        elif tag == "RandomState":
            place.set_state(state)
        else:
            place.setstate(state)
        return place

    def _new_generator(self, tag: str, state: Any, path: str) -> Any:
        if tag == "Random":
            return random.Random()  # noqa: S311 - what the user had, and no secret
        name = state["bit_generator"]
        if name not in _BIT_GENERATORS:
            msg = f"{path} was a generator of the unknown kind {name!r}"
            raise UnplaceableError(msg)
        if tag == "RandomState":
            return np.random.RandomState()
        return np.random.Generator(getattr(np.random, name)())

    def _variables(self, node: Any, path: str, fresh: Any) -> Any:
        found = framework_variables(fresh)
        own = [v for v in found or () if id(v) not in self._covered]
        if len(own) != len(node["v"]):
            msg = (
                f"{path} was a {node['class']} with {len(node['v'])} variables, and is "
                f"{class_name(type(fresh))} with {len(own)} now"
            )
            raise UnplaceableError(msg)
        for index, (variable, key) in enumerate(zip(own, node["v"], strict=True)):
            self._assign(variable, self._tensor(key), f"{path}/{index}")
        return fresh

    def _function(self, node: Any, path: str, fresh: Any) -> Any:
        closure = closure_of(fresh) if callable(fresh) else "not a function"
        if isinstance(closure, str) or any(name not in closure for name in node["v"]):
            msg = f"{path} was a function, and is {fresh!r} now"
            raise UnplaceableError(msg)
        cells = _cells(fresh)
        for name, item in node["v"].items():
            value = self.decode(item, f"{path}/<{name}>", closure[name])
            if name in cells and not self._dry:
                cells[name].cell_contents = value
        return fresh

    def _object(self, node: Any, path: str, fresh: Any, place: Any) -> Any:
        cls = _class(node, fresh, path)
        if place is None:
            place = fresh if self._dry else object.__new__(cls)
        self._made[path] = place
        old = {} if fresh is None else attributes_of(fresh)
        values = {
            name: self.decode(item, f"{path}/{name}", old.get(name))
            for name, item in node["v"].items()
        }
        if self._dry:
            return place
        for name in attributes_of(place).keys() - values.keys():
            object.__delattr__(place, name)
        for name, value in values.items():
            object.__setattr__(place, name, value)
        return place


def _cells(function: Any) -> dict[str, Any]:
    import functools

    while isinstance(function, functools.partial):
        function = function.func
    function = inner_function(function) if hasattr(function, "__func__") else function
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return dict(zip(names, getattr(function, "__closure__", None) or (), strict=True))


def _class(node: Any, fresh: Any, path: str) -> type:
    if class_name(type(fresh)) == node["class"]:
        return type(fresh)
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
