"""What has changed, as JSON beside named tensors, in terms of what was there at the beginning.

An object of the beginning is written as its path, so that whoever else holds it finds it again. One
that came during the training is written once, in full, under a number, wherever it is held: what was
one object stays one, and cycles end. Nothing here can run code when it is read.
"""

from __future__ import annotations

import enum
import functools
import io
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection import keras_names
from sweeper.inspection.sorts import class_name, fields_of, module_of
from sweeper.training.encoding import TAG, Json, NotPlainError, Tensors, encode, hold
from sweeper.training.encoding.replicas import refuse_replicated
from sweeper.training.userstate.holders.foreign import is_pandas, put_pandas
from sweeper.training.userstate.holders.leaves import MISSING, PLAIN, same
from sweeper.training.userstate.holders.names import name_of
from sweeper.training.userstate.holders.objects import Holder, Structure
from sweeper.training.userstate.holders.outputs import is_output, put_output
from sweeper.training.userstate.holders.positions import IteratorState, reduced_iterator
from sweeper.training.userstate.holders.settables import fill_set, layout_of
from sweeper.training.userstate.holders.values import (
    Generator,
    Value,
    put_array,
    put_seeds,
    seeds_of,
)
from sweeper.training.userstate.traversal.walk import Node

_CONTAINERS = (OrderedDict, Counter, defaultdict, dict, list, deque, set)
_MANY = 256
"""Numbers of one type from which a list is written as an array."""


class Encoder:
    """Writes the changed holders of one capture down.

    Args:
        tensors: Receives the arrays.
        prefix: What their names begin with.
        nodes: What was there at the beginning, by identity.
        covered: Gives the ids of the variables that other components capture.
        exempt: Ids of objects that only write.
    """

    def __init__(
        self,
        tensors: Tensors,
        prefix: str,
        nodes: dict[int, Node],
        covered: Callable[[], frozenset[int]],
        exempt: frozenset[int] = frozenset(),
    ) -> None:
        self.made: list[Json] = []
        self._tensors = tensors
        self._prefix = prefix
        self._nodes = nodes
        self._covered = covered
        self._exempt = exempt
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._trackers: dict[int, str] | None = None
        self.where = ""
        self.placed: set[int] = set()
        """The iterators that were written down in the place of those they were."""

    def holder(self, holder: Holder) -> Json:
        """The contents of a holder that has changed.

        Raises:
            NotPlainError: It came to hold what has no plain form.
        """
        self.where = holder.path
        if isinstance(holder, Value):
            key = f"{self._prefix}/{holder.path}"
            return {"value": holder.capture(self._tensors, key)}
        if isinstance(holder, Structure):
            return self._structure(holder)
        raise NotPlainError(holder.path, holder.thing)

    def _structure(self, holder: Structure) -> Json:
        keys, values = holder.read()
        if holder.shape == "named":
            began = dict(zip(holder.keys, holder.values, strict=True))
            moved = {id(i.thing) for i in holder.iterators if i.changed()}
            written = {}
            for name, value in zip(keys, values, strict=True):
                if same(began.get(name, MISSING), value) and not _touches(value, moved):
                    continue
                self.where = path_in(holder, name)
                written[name] = self.value(value)
            gone = [name for name in holder.keys if name not in keys]
            return {"set": written, "gone": gone}
        if holder.shape == "keyed":
            pairs = []
            for key, value in zip(keys, values, strict=True):
                self.where = f"{holder.path}[{key!r:.60}]"
                pairs.append([self.value(key), self.value(value)])
            return {"items": pairs}
        return self._ordered(holder.thing, values, holder.path)

    def _ordered(self, thing: Any, values: list[Any], path: str) -> Json:
        if isinstance(thing, set):
            layout = layout_of(thing)
            shown = None if layout is None else [layout[0], list(layout[1]), list(layout[2])]
            again: set[Any] = set()
            if not fill_set(again, values, layout) and all(map(_hashes_alike, values)):
                what = "a set whose order no other set can be given; use dict.fromkeys or a list"
                raise NotPlainError(path, thing, what)
            return {"values": self._values(values, path), "layout": shown}
        packed = self._packed(values, path)
        return {"packed": packed} if packed is not None else {"values": self._values(values, path)}

    def _values(self, values: list[Any], path: str) -> list[Json]:
        found = []
        for index, value in enumerate(values):
            self.where = f"{path}[{index}]"
            found.append(self.value(value))
        return found

    def _packed(self, values: list[Any], path: str) -> Json:
        """Many numbers of one type as one array."""
        if len(values) < _MANY:
            return None
        kinds = set(map(type, values))
        if kinds == {float}:
            return put_array(np.array(values, np.float64), self._tensors, self._key(path))
        if kinds == {int} and all(-(1 << 62) < v < 1 << 62 for v in values):
            return put_array(np.array(values, np.int64), self._tensors, self._key(path))
        return None

    def value(self, value: Any) -> Json:
        """One value: a leaf, a reference, or the number of an object that is new."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if value is MISSING:
            return {TAG: "nothing"}
        node = self._nodes.get(id(value))
        if node is not None and not self._has_gone_on(node):
            return {TAG: "ref", "v": node.path}
        if id(value) in self._exempt or isinstance(value, tf.summary.SummaryWriter):
            return {TAG: "kept"}
        if isinstance(value, enum.Enum):
            return {TAG: "enum", "class": self._class(type(value)), "v": value.name}
        if isinstance(value, keras.Variable | tf.Variable) and id(value) in self._covered():
            return {TAG: "kept"}
        simple = self._simple(value)
        if simple is not None:
            return simple
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.made)
            self._alive.append(value)
            self.made.append(None)
            self.made[number] = self._body(value)
        return {TAG: "new", "v": number}

    def _has_gone_on(self, node: Node) -> bool:
        if isinstance(node.holder, IteratorState) and node.holder.changed():
            self.placed.add(id(node.thing))
            return True
        return False

    def _simple(self, value: Any) -> Json:
        """The node of a value that is known by what it is made of."""
        if isinstance(value, tuple):
            parts = [self.value(each) for each in tuple.__iter__(value)]
            named = {} if type(value) is tuple else {"class": self._class(type(value))}
            return {TAG: "tuple", "v": parts, **named}
        if isinstance(value, frozenset):
            members = [self.value(each) for each in frozenset.__iter__(value)]
            return {TAG: "frozenset", "v": members}
        if isinstance(value, types.MethodType):
            owner, name = self.value(value.__self__), value.__func__.__name__
            return {TAG: "method", "self": owner, "name": name}
        if isinstance(value, np.generic):
            if value.dtype.kind in "SUMmV":
                return {TAG: "scalar", "v": self._array(np.asarray(value))}
            return {TAG: "leaf", "v": encode(value, self._key(self.where), self._tensors)}
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return {TAG: "tensor", "v": self._array(value.numpy())}
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | np.ufunc):
            return self._named(value)
        return self._leaf(value)

    def _leaf(self, value: Any) -> Json:
        if isinstance(value, tf.DType | np.dtype):
            kind = "tf" if isinstance(value, tf.DType) else "np"
            return {TAG: "dtype", "kind": kind, "v": getattr(value, "name", str(value))}
        if type(value) in _BY_TEXT:
            return {TAG: "text", "type": type(value).__name__, "v": str(value)}
        if type(value) in PLAIN or hasattr(value, "__fspath__"):
            return {TAG: "leaf", "v": encode(value, self.where, self._tensors)}
        return None

    def _named(self, value: Any) -> Json:
        name = name_of(value)
        if name is None:
            what = (
                f"the {'class' if isinstance(value, type) else 'function'} "
                f"{getattr(value, '__qualname__', value)!r}, which was made during training"
            )
            raise NotPlainError(self.where, value, what)
        return {TAG: "named", "v": name}

    def _class(self, cls: type) -> Json:
        node = self._nodes.get(id(cls))
        if node is not None:
            return {TAG: "ref", "v": node.path}
        name = name_of(cls)
        if name is None:
            what = f"a {class_name(cls)} made during training, of a class that no name leads to"
            raise NotPlainError(self.where, cls, what)
        return {TAG: "named", "v": name}

    def _body(self, value: Any) -> Json:
        where = self.where
        try:
            if isinstance(value, np.ndarray):
                return self._new_array(value)
            if isinstance(value, _CONTAINERS):
                return self._new_container(value)
            special = self._new_state(value)
            return self._new_object(value) if special is None else special
        finally:
            self.where = where

    def _new_array(self, value: Any) -> Json:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner is not value and owner.flags.c_contiguous and value.flags.writeable:
            offset = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            return {
                "kind": "view",
                "of": self.value(owner),
                "offset": offset,
                "shape": list(value.shape),
                "strides": list(value.strides),
                "dtype": value.dtype.str,
            }
        if value.dtype == object:
            items = self._values(list(value.ravel()), self.where)
            return {"kind": "objects", "shape": list(value.shape), "values": items}
        return {"kind": "array", "v": self._array(value), "order": _order(value)}

    def _new_container(self, value: Any) -> Json:
        kind: Any = next(each for each in _CONTAINERS if isinstance(value, each))
        body: dict[str, Json] = {"kind": kind.__name__}
        if "keras" in module_of(type(value)):
            body["tracked"] = [type(value).__name__, self._owner_of(value)]
        elif type(value) is not kind:
            body["class"] = self._class(type(value))
            body["attributes"] = self._attributes(value)
        if isinstance(value, defaultdict):
            body["factory"] = self.value(value.default_factory)
        if isinstance(value, deque):
            body["maxlen"] = value.maxlen
        if isinstance(value, dict):
            where = self.where
            pairs = []
            for key, item in list(kind.items(value)):
                self.where = f"{where}[{key!r:.60}]"
                pairs.append([self.value(key), self.value(item)])
            return {**body, "items": pairs}
        return {**body, **self._ordered(value, list(kind.__iter__(value)), self.where)}

    def _owner_of(self, tracked: Any) -> str | None:
        """The path of the layer that Keras's container reports what it is given to."""
        if self._trackers is None:
            found = ((fields_of(n.thing).get("_tracker"), n.path) for n in self._nodes.values())
            self._trackers = {id(tracker): path for tracker, path in found if tracker is not None}
        return self._trackers.get(id(tracked.tracker))

    def _attributes(self, value: Any) -> Json:
        where, written = self.where, {}
        for name, item in list(fields_of(value).items()):
            if not name.startswith(keras_names.TRACKING_PREFIXES):
                self.where = f"{where}.{name}"
                written[name] = self.value(item)
        return written

    def _new_state(self, value: Any) -> Json:
        """An object that can be made anew from a state of its own."""
        if is_output(value):
            return put_output(value, self.where, self._class)
        if is_pandas(value):
            return {"kind": "pandas", "v": put_pandas(value, self._tensors, self._key(self.where))}
        if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
            state = Generator(value, self.where).capture(self._tensors, self._key(self.where))
            seeds = put_seeds(seeds_of(value), self._key(self.where), self._tensors)
            return {"kind": "generator", "type": type(value).__name__, "v": state, "seeds": seeds}
        refuse_replicated(value, self.where)
        if isinstance(value, keras.Variable | tf.Variable):
            kind = "keras" if isinstance(value, keras.Variable) else "tf"
            return {
                "kind": "variable",
                "type": kind,
                "v": self._tensor(hold(value)),
                "trainable": bool(value.trainable),
                "name": str(value.name).partition(":")[0],
            }
        if isinstance(value, keras.random.SeedGenerator):
            return {"kind": "seeds", "v": self._tensor(hold(value.state))}
        if isinstance(value, tf.random.Generator):
            algorithm = int(value.algorithm)
            return {"kind": "tf generator", "v": self._tensor(hold(value.state)), "is": algorithm}
        if isinstance(value, keras.metrics.Metric) and type(value).__module__.startswith("keras."):
            parts = [self._tensor(hold(variable)) for variable in value.variables]
            config = encode(value.get_config(), self.where, self._tensors)
            return {"kind": "metric", "class": type(value).__name__, "config": config, "v": parts}
        if isinstance(value, functools.partial):
            parts = [self.value(each) for each in (value.func, value.args, dict(value.keywords))]
            return {"kind": "partial", "v": parts}
        if isinstance(value, io.StringIO | io.BytesIO) and not value.closed:
            content = encode(value.getvalue(), self.where, self._tensors)
            return {"kind": type(value).__name__, "v": content, "at": value.tell()}
        reduced = reduced_iterator(value)
        return None if reduced is None else self._new_iterator(reduced)

    def _new_iterator(self, reduced: tuple[Any, ...]) -> Json:
        function, arguments = reduced[0], reduced[1]
        state = reduced[2] if len(reduced) > 2 else None
        return {
            "kind": "iterator",
            "of": self._named(function),
            "arguments": [self.value(each) for each in arguments],
            "state": self.value(state),
        }

    def _new_object(self, value: Any) -> Json:
        cls = type(value)
        if not all(base.__flags__ & (1 << 9) for base in cls.__mro__[:-1]) and cls not in _OPEN:
            raise NotPlainError(self.where, value)
        if isinstance(value, keras.layers.Layer | keras.optimizers.Optimizer | tf.Module):
            reason = f"a {class_name(cls)} made during training; make it in the factory"
            raise NotPlainError(self.where, value, reason)
        made = self._class(cls)
        if made.get(TAG) == "named" and made["v"].startswith(("keras", "tensorflow")):
            raise NotPlainError(self.where, value)
        return {"kind": "object", "class": made, "attributes": self._attributes(value)}

    def _tensor(self, value: Any) -> str:
        key = self._key(self.where)
        self._tensors[key] = value
        return key

    def _array(self, value: Any) -> Json:
        return put_array(np.asarray(value), self._tensors, self._key(self.where))

    def _key(self, where: str) -> str:
        key = f"{self._prefix}/{where}"
        while key in self._tensors:
            key += "'"
        return key


_OPEN = (types.SimpleNamespace,)
"""Classes that are not written in Python, and hold nothing but attributes."""

_BY_TEXT = frozenset(cls for cls in PLAIN if cls.__module__ in ("decimal", "fractions", "uuid"))


def _order(array: Any) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _touches(value: Any, moved: set[int]) -> bool:
    if isinstance(value, tuple):
        return any(_touches(each, moved) for each in value)
    return id(value) in moved


def path_in(holder: Structure, name: Any) -> str:
    if type(holder).__name__ in ("Cell", "ContextValue"):
        return holder.path
    kind = "variable" if type(holder).__name__ == "ModuleVariables" else "attribute"
    return f"{holder.path}: {kind} {name!r}"


def _hashes_alike(value: object) -> bool:
    """Whether the hash comes of what the value is, and not of where it lies in memory."""
    if isinstance(value, tuple | frozenset):
        return all(map(_hashes_alike, value))
    return type(value) in PLAIN or isinstance(value, np.generic)
