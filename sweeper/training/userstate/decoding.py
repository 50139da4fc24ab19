"""The inverse of the encoder: contents and new objects, from JSON and named tensors.

Nothing is imported, and no method of the user's is run: an object is made by `object.__new__`, and
its attributes are set below its own ``__setattr__``.
"""

from __future__ import annotations

import decimal
import fractions
import functools
import io
import itertools
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils import tracking

from sweeper.training.encoding import TAG, Json, UnplaceableError, decode
from sweeper.training.encoding.decoder import new_generator
from sweeper.training.userstate.holders.foreign import take_pandas
from sweeper.training.userstate.holders.leaves import MISSING
from sweeper.training.userstate.holders.names import find_named
from sweeper.training.userstate.holders.objects import Attributes, Structure
from sweeper.training.userstate.holders.outputs import take_output
from sweeper.training.userstate.holders.settables import fill_set
from sweeper.training.userstate.holders.values import take_array, take_seeds
from sweeper.training.userstate.traversal.walk import Node

_DICTS: Mapping[str, Any] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
    "defaultdict": defaultdict,
}
_TEXTS: Mapping[str, Any] = {
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "UUID": uuid.UUID,
}
_KEPT: Any = object()
"""Stands for a variable that another component restores: what is there stays."""


class Decoder:
    """Reads what one capture wrote.

    Args:
        made: The bodies of the objects that were new.
        tensors: The arrays, by name.
        nodes: What was there at the beginning of this training, by path.
    """

    def __init__(
        self, made: list[Json], tensors: Mapping[str, Any], nodes: Mapping[str, Node]
    ) -> None:
        self._bodies = made
        self._tensors = tensors
        self._nodes = nodes
        self._objects: dict[int, Any] = {}

    def structure(self, holder: Structure, saved: Json) -> None:
        """Give a holder the contents that were saved."""
        if holder.shape == "named":
            began = dict(zip(holder.keys, holder.values, strict=True))
            for name in saved["gone"]:
                began.pop(name, None)
            for name, node in saved["set"].items():
                now = dict(zip(*holder.read(), strict=True)).get(name, MISSING)
                value = _or_present(self.value(node), now)
                if value is not MISSING:
                    began[name] = value
            holder.write(list(began), list(began.values()))
            return
        if holder.shape == "keyed":
            pairs = [(self.value(key), self.value(item)) for key, item in saved["items"]]
            present = dict(zip(*holder.read(), strict=True))
            # What only writes is made again where it is first used.
            pairs = [(key, item) for key, item in pairs if item is not _KEPT or key in present]
            holder.write(
                [key for key, _ in pairs],
                [_or_present(item, present.get(key)) for key, item in pairs],
            )
            return
        values, there = self._ordered(saved), holder.read()[1]
        there += [None] * (len(values) - len(there))
        values = [_or_present(*pair) for pair in zip(values, there, strict=False)]
        if isinstance(holder.thing, set):
            fill_set(holder.thing, values, _layout(saved))
            return
        holder.write([], values)

    def _ordered(self, saved: Json) -> list[Any]:
        if "packed" in saved:
            packed: list[Any] = take_array(saved["packed"], self._tensors).tolist()
            return packed
        return [self.value(each) for each in saved["values"]]

    def value(self, node: Json) -> Any:
        """One value.

        Raises:
            UnplaceableError: It refers to what is not there.
        """
        if not isinstance(node, dict):
            return node
        tag = node[TAG]
        if tag == "new":
            return self._new(node["v"])
        read = _READ[tag]
        return read(self, node)

    def _ref(self, node: Json) -> Any:
        if node["v"] not in self._nodes:
            msg = f"{node['v']} was there when training began, and is not now"
            raise UnplaceableError(msg)
        return self._nodes[node["v"]].thing

    def _named(self, node: Json) -> Any:
        found = find_named(node["v"])
        if found is None:
            msg = f"{node['v'].replace(':', '.')} was held, and there is nothing of that name now"
            raise UnplaceableError(msg)
        return found

    def _tuple(self, node: Json) -> Any:
        parts = [self.value(each) for each in node["v"]]
        return tuple.__new__(self._class(node["class"]), parts) if "class" in node else tuple(parts)

    def _method(self, node: Json) -> Any:
        owner = self.value(node["self"])
        for base in type(owner).__mro__:
            found = base.__dict__.get(node["name"])
            if isinstance(found, types.FunctionType):
                return types.MethodType(found, owner)
        msg = f"the method {node['name']!r} of a {type(owner).__qualname__} was held, and is gone"
        raise UnplaceableError(msg)

    def _class(self, node: Json) -> Any:
        found = self.value(node)
        if not isinstance(found, type):
            msg = f"{node['v']} was a class, and is {found!r} now"
            raise UnplaceableError(msg)
        return found

    def _dtype(self, node: Json) -> Any:
        return tf.as_dtype(node["v"]) if node["kind"] == "tf" else np.dtype(node["v"])

    def _new(self, number: int) -> Any:
        if number in self._objects:
            return self._objects[number]
        body = self._bodies[number]
        return _MADE[body["kind"]](self, number, body)

    def _keep(self, number: int, made: Any) -> Any:
        self._objects[number] = made
        return made

    def _container(self, number: int, body: Json) -> Any:
        kind = body["kind"]
        cls = self._class(body["class"]) if "class" in body else None
        if "tracked" in body:
            cls = _TRACKED[body["tracked"][0]]
        if kind in _DICTS:
            made = _empty_dict(_DICTS[kind], cls)
            self._keep(number, made)
            if kind == "defaultdict":
                made.default_factory = self.value(body["factory"])
            setter = OrderedDict if kind == "OrderedDict" else dict
            for key, item in body["items"]:
                setter.__setitem__(made, self.value(key), self.value(item))
        else:
            base: Any = {"list": list, "set": set, "deque": deque}[kind]
            made = base(maxlen=body["maxlen"]) if kind == "deque" and cls is None else None
            if made is None:
                made = base.__new__(cls or base)
                base.__init__(made, *([(), body["maxlen"]] if kind == "deque" else []))
            self._keep(number, made)
            values = self._ordered(body)
            if kind == "set":
                fill_set(made, values, _layout(body))
            else:
                base.extend(made, values)
        if "tracked" in body:
            owner = body["tracked"][1]
            made.tracker = None if owner is None else self._ref({"v": owner})._tracker
        self._set_attributes(made, body)
        return made

    def _object(self, number: int, body: Json) -> Any:
        cls = self._class(body["class"])
        made = cls() if cls is types.SimpleNamespace else object.__new__(cls)
        self._keep(number, made)
        self._set_attributes(made, body)
        return made

    def _set_attributes(self, made: Any, body: Json) -> None:
        values = {name: self.value(node) for name, node in body.get("attributes", {}).items()}
        if values:
            Attributes(made, "").write(list(values), list(values.values()))

    def _array(self, number: int, body: Json) -> Any:
        array = take_array(body["v"], self._tensors)
        return self._keep(number, np.array(array, order=body["order"]))

    def _view(self, number: int, body: Json) -> Any:
        owner = self.value(body["of"])
        made = np.ndarray(
            shape=tuple(body["shape"]),
            dtype=np.dtype(body["dtype"]),
            buffer=owner,
            offset=body["offset"],
            strides=tuple(body["strides"]),
        )
        return self._keep(number, made)

    def _objects_array(self, number: int, body: Json) -> Any:
        made = self._keep(number, np.empty(tuple(body["shape"]), object))
        flat = made.reshape(-1)
        for index, node in enumerate(body["values"]):
            flat[index] = self.value(node)
        return made

    def _generator(self, number: int, body: Json) -> Any:
        seeds = take_seeds(body["seeds"], self._tensors)
        made = new_generator(body["type"], decode(body["v"], self._tensors), seeds)
        return self._keep(number, made)

    def _variable(self, number: int, body: Json) -> Any:
        value = self._tensors[body["v"]]
        if body["type"] == "keras":
            made: Any = keras.Variable(
                value, dtype=np.dtype(value.dtype).name, trainable=body["trainable"]
            )
        else:
            made = tf.Variable(value, trainable=body["trainable"], name=body["name"])
        return self._keep(number, made)

    def _seeds(self, number: int, body: Json) -> Any:
        made = keras.random.SeedGenerator(0)
        made.state.assign(self._tensors[body["v"]])
        return self._keep(number, made)

    def _tf_generator(self, number: int, body: Json) -> Any:
        made = tf.random.Generator.from_state(self._tensors[body["v"]], alg=body["is"])
        return self._keep(number, made)

    def _metric(self, number: int, body: Json) -> Any:
        cls = getattr(keras.metrics, body["class"], None)
        if cls is None:
            msg = f"a metric {body['class']} was held, and Keras has none now"
            raise UnplaceableError(msg)
        made = cls.from_config(decode(body["config"], self._tensors))
        for variable, key in zip(made.variables, body["v"], strict=True):
            variable.assign(self._tensors[key])
        return self._keep(number, made)

    def _partial(self, number: int, body: Json) -> Any:
        function, arguments, keywords = (self.value(each) for each in body["v"])
        return self._keep(number, functools.partial(function, *arguments, **keywords))

    def _stream(self, number: int, body: Json) -> Any:
        made: Any = {"StringIO": io.StringIO, "BytesIO": io.BytesIO}[body["kind"]]()
        made.write(decode(body["v"], self._tensors))
        made.seek(body["at"])
        return self._keep(number, made)

    def _output(self, number: int, body: Json) -> Any:
        return self._keep(number, take_output(body, self._class))

    def _iterator(self, number: int, body: Json) -> Any:
        function = self.value(body["of"])
        if function not in _ITERATORS:
            msg = f"an iterator made by {function!r} was held, which makes none"
            raise UnplaceableError(msg)
        made = function(*(self.value(each) for each in body["arguments"]))
        state = self.value(body["state"])
        if state is not None:
            made.__setstate__(state)
        return self._keep(number, made)


def _or_present(value: Any, present: Any) -> Any:
    return present if value is _KEPT else value


def _layout(saved: Json) -> Any:
    layout = saved.get("layout")
    return None if layout is None else (layout[0], tuple(layout[1]), tuple(layout[2]))


def _empty_dict(base: Any, cls: type | None) -> Any:
    return base() if cls is None else base.__new__(cls)


_TRACKED: Mapping[str, Any] = {
    name: cls for name, cls in vars(tracking).items() if name.startswith("Tracked")
}
"""Keras's containers, which tell a layer what they are given."""

_ITERATORS = frozenset(
    {iter, reversed, enumerate, zip, map, filter}
    | {cls for cls in vars(itertools).values() if isinstance(cls, type)}
)

_READ: Mapping[str, Any] = {
    "dtype": Decoder._dtype,
    "enum": lambda d, node: d._class(node["class"])[node["v"]],
    "frozenset": lambda d, node: frozenset(d.value(each) for each in node["v"]),
    "kept": lambda _d, _node: _KEPT,
    "leaf": lambda d, node: decode(node["v"], d._tensors),
    "method": Decoder._method,
    "named": Decoder._named,
    "nothing": lambda _d, _node: MISSING,
    "ref": Decoder._ref,
    "scalar": lambda d, node: take_array(node["v"], d._tensors)[()],
    "tensor": lambda d, node: tf.convert_to_tensor(take_array(node["v"], d._tensors)),
    "text": lambda _d, node: _TEXTS[node["type"]](node["v"]),
    "tuple": Decoder._tuple,
}

_MADE: Mapping[str, Any] = {
    **dict.fromkeys((*_DICTS, "list", "set", "deque"), Decoder._container),
    "BytesIO": Decoder._stream,
    "StringIO": Decoder._stream,
    "array": Decoder._array,
    "generator": Decoder._generator,
    "iterator": Decoder._iterator,
    "metric": Decoder._metric,
    "object": Decoder._object,
    "objects": Decoder._objects_array,
    "bar": Decoder._output,
    "logger": Decoder._output,
    "pandas": lambda d, number, body: d._keep(number, take_pandas(body["v"], d._tensors)),
    "partial": Decoder._partial,
    "progress": Decoder._output,
    "seeds": Decoder._seeds,
    "tf generator": Decoder._tf_generator,
    "variable": Decoder._variable,
    "view": Decoder._view,
}
