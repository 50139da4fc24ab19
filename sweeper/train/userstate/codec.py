"""Codec of changed objects, with references to objects that existed when training started.

Such an object is encoded as its path, so it stays the same object for all that refer to it. An object
made during training is encoded completely where it first occurs. In addition to the plain codec, this
one encodes references, functions and classes by name, and objects of libraries that can be created from
their state.
"""

import functools
import inspect
import logging
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeper.inspection.sorts import class_name
from sweeper.train.codec import (
    MISSING,
    TAG,
    Decoder,
    Encoder,
    Json,
    NotPlainError,
    Tensors,
    UnplaceableError,
    owner_of,
    refuse_replicated,
    replicas_of,
    same,
)
from sweeper.train.userstate.holders import KEYED, NAMED, Holder, Structure, Value
from sweeper.train.userstate.refused import is_of_tqdm, is_output, kind_of
from sweeper.train.userstate.walk import Node

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
_VARIABLES = (keras.Variable, tf.Variable)


class UserEncoder(Encoder):
    """Encoder of the changed holders, for one capture.

    ``nodes`` are the objects that existed when training started, by identity. ``covered`` returns the ids of
    variables that other components capture; ``exempt`` are those of objects that only write.
    """

    def __init__(
        self,
        tensors: Tensors,
        prefix: str,
        nodes: Mapping[int, Node],
        *,
        covered: Callable[[], frozenset[int]],
        exempt: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(tensors, prefix)
        self._nodes = nodes
        self._covered = covered
        self._exempt = exempt

    def holder(self, holder: Holder, before: Json) -> Json:
        """Return the encoded contents of a changed holder; with the names that were encoded ``before``."""
        path = holder.path
        if isinstance(holder, Value):
            return {"value": holder.capture(self._tensors, f"{self._prefix}/{path}")}
        if not isinstance(holder, Structure):
            raise NotPlainError(path, holder.obj)
        keys, values = holder.read()
        if holder.shape == KEYED:
            return {"items": self._pairs(list(zip(keys, values, strict=True)), path)}
        if holder.shape != NAMED:
            return self._ordered(values, path)
        initial = dict(zip(holder.keys, holder.values, strict=True))
        changes = {
            name: self.encode(value, path_in(holder, name))
            for name, value in zip(keys, values, strict=True)
            if name in before.get("set", ()) or not same(initial.get(name, MISSING), value)
        }
        gone = dict.fromkeys([*holder.keys, *before.get("gone", ())])
        return {"set": changes, "gone": [name for name in gone if name not in keys]}

    def encode(self, value: Any, path: str) -> Json:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if value is MISSING:
            return {TAG: "nothing"}
        node = self._nodes.get(id(value))
        if node is not None:
            return {TAG: "ref", "v": node.path}
        if id(value) in self._exempt or isinstance(value, tf.summary.SummaryWriter):
            return {TAG: "kept"}
        if isinstance(value, _VARIABLES) and id(value) in self._covered():
            return {TAG: "kept"}
        return super().encode(value, path)

    def _immutable(self, value: Any, path: str) -> Json:
        if isinstance(value, types.MethodType):
            owner = self.encode(value.__self__, path)
            return {TAG: "method", "self": owner, "name": value.__func__.__name__}
        if isinstance(value, _FUNCTIONS):
            name = getattr(value, "__qualname__", value)
            return self._named(
                value, path, f"the function {name!r}, which was made during training"
            )
        return super()._immutable(value, path)

    def _named(self, obj: Any, path: str, otherwise: str) -> Json:
        node = self._nodes.get(id(obj))
        if node is not None:
            return {TAG: "ref", "v": node.path}
        return super()._named(obj, path, otherwise)

    def _fill_array(self, node: dict[str, Json], value: Any, path: str) -> None:
        owner = owner_of(value)
        # A record's fields, and bfloat16, are not in the text of a dtype; other classes have more than the bytes.
        is_plain = type(value) is np.ndarray and np.dtype(value.dtype.str) == value.dtype
        if (
            owner is value
            or not is_plain
            or not owner.flags.c_contiguous
            or not value.flags.writeable
        ):
            super()._fill_array(node, value, path)
            return
        offset = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
        of = self.encode(owner, path)
        node.update({TAG: "view", "of": of, "offset": offset, "dtype": value.dtype.str})
        node.update({"shape": list(value.shape), "strides": list(value.strides)})

    def _fill_object(self, node: dict[str, Json], value: Any, path: str) -> None:
        state = self._state(value, path)
        if state is None:
            super()._fill_object(node, value, path)
        else:
            node.update(state)

    def _state(self, value: Any, path: str) -> Json:
        """Return the node of an object that can be created from its state, or None."""
        if is_output(value):
            return self._output(value, path)
        refused = kind_of(value)
        if refused is not None:
            raise NotPlainError(path, value, refused.what, refused.advice)
        refuse_replicated(value, path)
        if isinstance(value, _VARIABLES):
            kind = "keras" if isinstance(value, keras.Variable) else "tf"
            settings = {
                "trainable": bool(value.trainable),
                "name": str(value.name).partition(":")[0],
            }
            return {TAG: "variable", "type": kind, "v": self._tensor(value, path), **settings}
        if isinstance(value, keras.random.SeedGenerator):
            return {TAG: "seeds", "v": self._tensor(value.state, path)}
        if isinstance(value, keras.metrics.Metric) and type(value).__module__.startswith("keras."):
            parts = [self._tensor(variable, path) for variable in value.variables]
            config = self.encode(value.get_config(), path)
            return {TAG: "metric", "class": type(value).__name__, "config": config, "v": parts}
        if isinstance(value, functools.partial):
            parts = [self.encode(e, path) for e in (value.func, value.args, dict(value.keywords))]
            return {TAG: "partial", "v": parts}
        return None

    def _output(self, value: Any, path: str) -> Json:
        """Encode a progress bar or a logger made during training: its settings, not its output."""
        cls = type(value)
        if cls is logging.Logger and logging.getLogger(value.name) is value:
            return {TAG: "logger", "v": value.name}
        if cls is keras.utils.Progbar:
            settings = {
                "target": value.target,
                "unit_name": value.unit_name,
                "verbose": value.verbose,
            }
            settings["stateful_metrics"] = sorted(value.stateful_metrics)
        elif is_of_tqdm(cls) and value.iterable is None:
            names = ("total", "unit", "leave", "disable")
            settings = {name: getattr(value, name, None) for name in names}
            settings["initial"] = getattr(value, "n", 0)
            settings["desc"] = (getattr(value, "desc", None) or "").removesuffix(": ") or None
        else:
            description = f"a {class_name(cls)} made during training; make it in the factory"
            raise NotPlainError(path, value, description)
        return {TAG: "bar", "class": self._class(cls, path), "v": settings}

    def _tensor(self, variable: Any, path: str) -> str:
        key = self._key(path)
        self._tensors[key] = replicas_of(variable)[0].read_value()
        return key


def path_in(holder: Structure, name: Any) -> str:
    """Return the path of an attribute or a variable of ``holder``."""
    return f"{holder.path}: {holder.part} {name!r}" if holder.part else holder.path


_KEPT: Any = object()
"""Placeholder for a variable that another component restores."""


class UserDecoder(Decoder):
    """Decoder of one capture; ``nodes`` are the objects that existed when training started, by path."""

    def __init__(self, tensors: Mapping[str, Any], nodes: Mapping[str, Node]) -> None:
        super().__init__(tensors)
        self._nodes = nodes

    def structure(self, holder: Structure, saved: Json) -> None:
        """Set the contents of a holder to the saved ones."""
        if holder.shape == NAMED:
            initial = dict(zip(holder.keys, holder.values, strict=True))
            for name in saved["gone"]:
                initial.pop(name, None)
            for name, node in saved["set"].items():
                current = dict(zip(*holder.read(), strict=True)).get(name, MISSING)
                value = _or_present(self.decode(node), current)
                if value is not MISSING:
                    initial[name] = value
            holder.write(list(initial), list(initial.values()))
        elif holder.shape == KEYED:
            pairs = [(self.decode(key), self.decode(item)) for key, item in saved["items"]]
            present = dict(zip(*holder.read(), strict=True))
            # An object that only writes is created again where it is first used.
            pairs = [(key, item) for key, item in pairs if item is not _KEPT or key in present]
            holder.write(
                [key for key, _ in pairs],
                [_or_present(item, present.get(key)) for key, item in pairs],
            )
        else:
            values = self.ordered(saved)
            items = holder.read()[1]
            items += [None] * (len(values) - len(items))
            values = [_or_present(*pair) for pair in zip(values, items, strict=False)]
            holder.write([], values)

    def object_at(self, path: str) -> Any:
        """Return the object at ``path`` at the start of training."""
        if path not in self._nodes:
            raise UnplaceableError(f"{path} existed when training started, and does not exist now")
        return self._nodes[path].obj

    def _method(self, node: Json) -> Any:
        owner = self.decode(node["self"])
        method = inspect.getattr_static(type(owner), node["name"], None)
        if isinstance(method, types.FunctionType):
            return types.MethodType(method, owner)
        raise UnplaceableError(
            f"it contains the method {node['name']!r} of a {type(owner).__qualname__}, which does "
            "not exist now"
        )

    def _view(self, node: Json) -> Any:
        return np.ndarray(
            shape=tuple(node["shape"]),
            dtype=np.dtype(node["dtype"]),
            buffer=self.decode(node["of"]),
            offset=node["offset"],
            strides=tuple(node["strides"]),
        )

    def _variable(self, node: Json) -> Any:
        value = self.tensors[node["v"]]
        trainable = node["trainable"]
        if node["type"] == "keras":
            return keras.Variable(value, dtype=np.dtype(value.dtype).name, trainable=trainable)
        return tf.Variable(value, trainable=trainable, name=node["name"])

    def _bar(self, node: Json) -> Any:
        cls = self.class_of(node)
        if cls is not keras.utils.Progbar and not is_of_tqdm(cls):
            raise UnplaceableError(f"it contains a progress bar, and {cls.__name__} is not one now")
        return cls(**node["v"])

    def _seeds(self, node: Json) -> Any:
        generator = keras.random.SeedGenerator(0)
        generator.state.assign(self.tensors[node["v"]])
        return generator

    def _metric(self, node: Json) -> Any:
        cls = getattr(keras.metrics, node["class"], None)
        if cls is None:
            raise UnplaceableError(
                f"it contains a metric {node['class']}, which Keras does not have now"
            )
        metric = cls.from_config(self.decode(node["config"]))
        for variable, key in zip(metric.variables, node["v"], strict=True):
            variable.assign(self.tensors[key])
        return metric

    def _partial(self, node: Json) -> Any:
        function, arguments, keywords = (self.decode(part) for part in node["v"])
        return functools.partial(function, *arguments, **keywords)


def _or_present(value: Any, present: Any) -> Any:
    return present if value is _KEPT else value


UserDecoder.readers = {
    **Decoder.readers,
    "bar": UserDecoder._bar,
    "logger": lambda _, node: logging.getLogger(node["v"]),
    "kept": lambda _, __: _KEPT,
    "method": UserDecoder._method,
    "metric": UserDecoder._metric,
    "nothing": lambda _, __: MISSING,
    "partial": UserDecoder._partial,
    "ref": lambda d, node: d.object_at(node["v"]),
    "seeds": UserDecoder._seeds,
    "variable": UserDecoder._variable,
    "view": UserDecoder._view,
}
