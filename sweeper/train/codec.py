"""Codec of Python values as JSON and named tensors, for checkpoints.

Neither direction runs code: nothing is imported, unpickled or called by name, and no method of the
user's is run. A class or function is encoded by its name if a loaded module of the user's or one of
`_LIBRARIES` has it under that name. An object is created by `object.__new__` of its class, and its
attributes are set without its ``__setattr__``. A value that cannot be encoded is refused with its path.

An object that occurs several times is encoded where it first occurs, and as a reference elsewhere. So it
is one object after decoding, too, and cycles end.

Leaves, which are values without parts, are compared by identity and then by their bits, never by
the user's ``==``.

A variable of a `tf.distribute.Strategy` consists of one variable per replica. Weights and optimizer slots are
equal on all replicas; BatchNorm's moving statistics, seed generators' states and metrics differ. Each replica's
value is captured: the first under the variable's key, the others below it. If all are equal, the file contains
only the first (`Snapshot.repeated`).
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import fractions
import io
import operator
import random
import re
import struct
import sys
import types
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash
from numpy.lib.format import read_array, write_array

from sweeper.errors import UncapturableError
from sweeper.inspection import keras_names, sorts

Json = Any
Tensors = dict[str, Any]

TAG = "!"


class NotPlainError(Exception):
    """A value at ``path`` that cannot be encoded: what it is (by default its class), and what to use instead."""

    def __init__(self, path: str, value: object, reason: str = "", advice: str = "") -> None:
        description = reason or f"a {sorts.class_name(type(value))}"
        super().__init__(f"{path} is {description}{'; ' if advice else ''}{advice}")
        self.path = path
        self.what = description
        self.advice = advice


class UnplaceableError(ValueError):
    """A saved value that does not fit the present objects."""


def digest_of(array: Any) -> str:
    """Return the XXH3-128 of an array's shape, dtype and bytes."""
    values = np.ascontiguousarray(array)
    digest = xxhash.xxh3_128(values.reshape(-1).view(np.uint8).data)
    digest.update(f"{values.dtype}{values.shape}".encode())
    return digest.hexdigest()


def form_of(array: Any) -> str:
    """Return the dtype and shape of an array, tensor or variable, such as ``float32[2, 3]``."""
    return f"{getattr(array.dtype, 'name', array.dtype)}{list(array.shape)}"


_LIBRARIES = frozenset(
    {"argparse", "builtins", "collections", "itertools", "keras", "math", "numpy", "operator"}
    | {"tensorflow", "types"}
)


def name_of(obj: Any) -> str | None:
    """Return ``module:qualified.name`` of a class or function; None if the name does not lead to it."""
    module = getattr(obj, "__module__", None)
    if module is None and isinstance(obj, types.BuiltinFunctionType):
        module = "builtins"
    if type(obj).__name__ == "ufunc":
        module = "numpy"
    qualified = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if find_named(name) is obj else None


def find_named(name: str) -> Any:
    """Return the class or function of a name from `name_of`; None if there is none or it is not allowed."""
    module_name, _, qualified = name.partition(":")
    if module_name.partition(".")[0] not in _LIBRARIES and not sorts.is_users_module(module_name):
        return None
    obj: Any = sys.modules.get(module_name)
    for part in qualified.split("."):
        if isinstance(obj, types.ModuleType | type):
            obj = vars(obj).get(part)
        else:
            return None
    if isinstance(obj, staticmethod | classmethod):
        return obj.__func__
    return obj if isinstance(obj, type) or callable(obj) else None


OBJECT_ARRAY = ("an array of Python objects", "keep a list")
"""Description of such an array in a refusal, and what to use instead."""


def base_of(cls: type) -> type:
    """Return the built-in class whose methods read and write a container of ``cls``."""
    bases = (OrderedDict, defaultdict, dict, list, deque)
    return next(base for base in bases if issubclass(cls, base))


def put_array(array: Any, tensors: Tensors, key: str) -> Json:
    """Put a copy of ``array`` into ``tensors`` and return its node; text, dates and records as a ``.npy`` file.

    A masked array is two arrays.
    """
    if isinstance(array, np.ma.MaskedArray):
        return {
            **put_array(array.data, tensors, key),
            "mask": put_array(np.ma.getmaskarray(array), tensors, f"{key}/mask"),
            "fill": put_array(np.asarray(array.fill_value), tensors, f"{key}/fill"),
        }
    plain = np.array(array, copy=True, order="C").view(np.ndarray)
    if plain.dtype.hasobject:
        raise NotPlainError(key, array, *OBJECT_ARRAY)
    if plain.dtype.kind in "SUMm" or issubclass(plain.dtype.type, np.void):
        # Padding between the fields of a record is undefined, and assignment does not copy it.
        filled = np.zeros(plain.shape, plain.dtype)
        filled[...] = plain
        file = io.BytesIO()
        write_array(file, filled, allow_pickle=False)
        tensors[key] = np.frombuffer(file.getvalue(), np.uint8)
        return {"t": key, "npy": True}
    tensors[key] = plain
    return {"t": key}


def take_array(saved: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `put_array`."""
    if saved["t"] not in tensors:
        raise UnplaceableError(f"the tensor {saved['t']!r} is missing")
    if "mask" in saved:
        data = {name: value for name, value in saved.items() if name not in ("mask", "fill")}
        mask, fill = (take_array(saved[part], tensors) for part in ("mask", "fill"))
        return np.ma.MaskedArray(take_array(data, tensors), mask, fill_value=fill[()])
    array = np.asarray(tensors[saved["t"]])
    if "npy" in saved:
        return read_array(io.BytesIO(array.tobytes()), allow_pickle=False)
    return np.array(array)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()


def is_json_leaf(value: object) -> bool:
    """Return whether ``value`` is a leaf that JSON represents."""
    cls = type(value)
    return cls in PLAIN or isinstance(value, np.generic | PurePath | tf.DType | np.dtype)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same object, or equal leaves or tuples of leaves."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in PLAIN and type(one) not in _COMPARED:
        return bool(one == other)
    for kinds, compare in _COMPARED.items():
        if isinstance(one, kinds):
            return compare(one, other)
    return False


def _same_parts(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same_floats(one: float, other: float) -> bool:
    return one == other != 0.0 or struct.pack("d", one) == struct.pack("d", other)


def _same_tensors(one: Any, other: Any) -> bool:
    if not hasattr(one, "numpy") or not hasattr(other, "numpy"):
        return False
    a = np.asarray(one)
    b = np.asarray(other)
    if a.dtype.kind == "O":
        return a.shape == b.shape and bool(a.tolist() == b.tolist())
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    float: _same_floats,
    complex: lambda a, b: _same_floats(a.real, b.real) and _same_floats(a.imag, b.imag),
    tuple: _same_parts,
    frozenset: _same_parts,
    np.generic: lambda a, b: bool(a.dtype == b.dtype and a.tobytes() == b.tobytes()),
    types.MethodType: lambda a, b: a.__self__ is b.__self__ and a.__func__ is b.__func__,
    **dict.fromkeys((PurePath, tf.DType, np.dtype, tf.TensorShape), operator.eq),
    tf.Tensor: _same_tensors,
}


def _span(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step]


LEAVES: Mapping[str, tuple[type, Callable[[Any], Json], Callable[[Json], Any]]] = {
    "Decimal": (decimal.Decimal, str, decimal.Decimal),
    "Fraction": (fractions.Fraction, str, fractions.Fraction),
    "UUID": (uuid.UUID, str, uuid.UUID),
    "bytes": (bytes, lambda v: base64.b64encode(v).decode(), base64.b64decode),
    "complex": (complex, lambda v: [v.real, v.imag], lambda v: complex(*v)),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "dtype": (np.dtype, lambda v: v.name, np.dtype),
    "path": (type(Path()), str, Path),
    "pattern": (re.Pattern, lambda v: [v.pattern, v.flags], lambda v: re.compile(*v)),
    "range": (range, _span, lambda v: range(*v)),
    "slice": (slice, _span, lambda v: slice(*v)),
    "tf dtype": (tf.DType, lambda v: v.name, tf.as_dtype),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "timedelta": (
        dt.timedelta,
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: dt.timedelta(*v),
    ),
}
"""Leaves by the tags of their nodes: class, encoder to JSON, and decoder.

Subclasses are not included, except for NumPy's dtypes.
"""

_TAGS = {cls: tag for tag, (cls, _, _) in LEAVES.items()}

PLAIN = frozenset(
    {
        *(type(None), bool, int, float, str, dt.timezone, type(Ellipsis), type(NotImplemented)),
        _Missing,
        *_TAGS,
    }
)
"""Types of immutable values without parts, which are compared by value."""


def leaf_of(value: Any) -> Json:
    """Return the node of a leaf; None for other values, and for leaves without a form in JSON."""
    tag = "dtype" if isinstance(value, np.dtype) else _TAGS.get(type(value))
    zone = getattr(value, "tzinfo", None)
    if tag is None or not isinstance(zone, dt.timezone | None):
        return None
    if tag == "pattern" and not isinstance(value.pattern, str):
        return None
    return {TAG: tag, "v": LEAVES[tag][1](value)}


_SYMBOLIC = (tf.Tensor, keras.KerasTensor, tf.TensorSpec)
"""Tensors without values, which layers may keep from a trace. No later trace can use them, so a specification
stands for them after a resume."""

_OPEN = (types.SimpleNamespace,)
"""Classes written in C whose objects have only attributes."""

_MANY = 256
"""Minimum length of a list or tuple of numbers that is written as an array."""


def encode(value: Any, path: str, tensors: Tensors) -> Json:
    """Return ``value`` as JSON; arrays go into ``tensors`` under names that begin with ``path``."""
    return Encoder(tensors).encode(value, path)


def encode_own_state(encoder: Encoder, obj: Any, label: str, path: str) -> Json:
    """Return the result of ``obj.get_state()`` as JSON; ``label`` names the object."""
    try:
        return encoder.encode(obj.get_state(), path)
    except NotPlainError as error:
        raise UncapturableError(
            f"{label}: get_state() returned something that a checkpoint cannot hold: {error}; "
            "return numbers, strings, arrays and containers of these"
        ) from None


class Encoder:
    """Encoder of the values of one capture; ``tensors`` receives the arrays, with ``prefix`` before their paths."""

    def __init__(self, tensors: Tensors, prefix: str = "") -> None:
        self._tensors = tensors
        self._prefix = prefix
        self._written: dict[int, tuple[dict[str, Json], str, Any]] = {}
        """The nodes of the encoded objects and their paths, by id, with the object, so that its id is not reused."""
        self._ids: set[str] = set()
        self._copied: dict[int, list[tuple[str, Any]]] = {}
        """The written arrays and their paths, by the array that owns the memory."""

    def encode(self, value: Any, path: str) -> Json:
        """Return ``value`` as JSON; ``path``, such as ``callbacks/0/state``, is for errors and tensors."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        immutable = self._immutable(value, path)
        if immutable is not None:
            return immutable
        if id(value) in self._written:
            node, where, _ = self._written[id(value)]
            if TAG not in node:
                raise NotPlainError(path, value, "an object that contains itself")
            if "id" not in node:
                node["id"] = self._unused(where, self._ids)
                self._ids.add(node["id"])
            return {TAG: "same", "as": node["id"]}
        node = {}
        self._written[id(value)] = node, path, value
        self._fill(node, value, path)
        return node

    def _immutable(self, value: Any, path: str) -> Json:
        """Return the node of an immutable value; None for others."""
        if value is np.ma.masked:
            return {TAG: "masked"}
        if isinstance(value, enum.Enum):
            # Members of a flag that are combined have no name by which they are found.
            combined = {"value": value.value} if isinstance(value, enum.Flag) else {}
            return {
                TAG: "enum",
                "class": self._class(type(value), path),
                "v": value.name,
                **combined,
            }
        if isinstance(value, tuple):
            parts = self._ordered(list(tuple.__iter__(value)), path)
            named = {} if type(value) is tuple else {"class": self._class(type(value), path)}
            return {TAG: "tuple", **parts, **named}
        if isinstance(value, frozenset):
            self._refuse_set(value, path)
            return {TAG: "frozenset", "v": self._items([*value], path)}
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, np.generic):
            return {TAG: "scalar", **self._array(np.asarray(value), path)}
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return {TAG: "tensor", **self._array(value.numpy(), path)}
        if isinstance(value, _SYMBOLIC):
            shape = tf.TensorShape(value.shape)
            sizes = None if shape.rank is None else shape.as_list()
            return {TAG: "symbolic", "dtype": tf.as_dtype(value.dtype).name, "shape": sizes}
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
        if not sorts.is_written_in_python(cls) and cls not in _OPEN:
            raise NotPlainError(path, value)
        if sorts.framework_variables(value) is not None:
            reason = f"a {sorts.class_name(cls)} made during training; make it in the factory"
            raise NotPlainError(path, value, reason)
        if sorts.module_of(cls).partition(".")[0] in ("keras", "tensorflow"):
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
        cls = type(value)
        if cls not in (np.ndarray, np.memmap, np.ma.MaskedArray, *_VIEWS.values()):
            raise NotPlainError(path, value, f"a {sorts.class_name(cls)}", "keep a plain array")
        node.update({TAG: "array", **self._array(value, path)})
        if cls in _VIEWS.values():
            node["class"] = cls.__name__
        if not value.flags.c_contiguous:
            # Sums add in the order of the memory.
            axes = range(value.ndim)
            node["axes"] = sorted(axes, key=lambda axis: -abs(value.strides[axis]))

    def _fill_container(self, node: dict[str, Json], value: Any, path: str) -> None:
        kind: Any = base_of(type(value))
        node[TAG] = next(cls.__name__ for cls in (dict, list, deque) if issubclass(kind, cls))
        # Keras tracks the layers in a list that a layer gets, and all have been made.
        of_keras = sorts.module_of(type(value)).partition(".")[0] == "keras"
        if type(value) not in (dict, list, deque) and not of_keras:
            node["class"] = self._class(type(value), path)
            node["attributes"] = self._attributes(value, path)
        if isinstance(value, deque):
            node["maxlen"] = value.maxlen
        if isinstance(value, dict):
            node["v"] = self._pairs(list(kind.items(value)), path)
        else:
            node.update(self._ordered(list(kind.__iter__(value)), path))

    def _pairs(self, items: Sequence[tuple[Any, Any]], path: str) -> list[Json]:
        pairs = []
        for key, item in items:
            where = f"{path}[{key!r:.60}]"
            pairs.append([self.encode(key, where), self.encode(item, where)])
        return pairs

    def _items(self, values: Sequence[Any], path: str) -> list[Json]:
        return [self.encode(value, f"{path}[{index}]") for index, value in enumerate(values)]

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
            for name, item in list(sorts.fields_of(value).items())
            if not name.startswith(keras_names.TRACKING_PREFIXES)
        }

    def _class(self, cls: type, path: str) -> Json:
        return self._named(
            cls, path, f"a {sorts.class_name(cls)}, whose class cannot be found by its name"
        )

    def _named(self, obj: Any, path: str, otherwise: str) -> Json:
        name = name_of(obj)
        if name is None:
            raise NotPlainError(path, obj, otherwise)
        return {TAG: "named", "v": name}

    def _array(self, array: Any, path: str) -> dict[str, Json]:
        node: dict[str, Json] = put_array(array, self._tensors, self._key(path))
        return node

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

_VIEWS: dict[str, type] = {"matrix": np.matrix, "recarray": np.recarray}
"""Classes of NumPy's that are other views of an array, by name."""


def owner_of(array: Any) -> Any:
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
        # A RandomState has no public attribute for it.
        generator = generator._bit_generator
    seeds = getattr(generator, "seed_seq", None)
    return seeds if isinstance(seeds, np.random.SeedSequence) else None


_BIT_GENERATORS = frozenset({"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"})


def decode(encoded: Json, tensors: Mapping[str, Any]) -> Any:
    """Return the inverse of `encode`, with the arrays in ``tensors``."""
    return Decoder(tensors).decode(encoded)


class Decoder:
    """Decoder of the values of one capture, which restores shared objects."""

    readers: Mapping[str, Callable[[Any, Any], Any]]
    """Methods that decode a node, by its tag."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self._made: dict[str, Any] = {}

    def decode(self, node: Json) -> Any:
        if not isinstance(node, dict):
            return node
        read = self.readers.get(node[TAG])
        if read is None:
            raise UnplaceableError(f"it contains a value of the unknown kind {node[TAG]!r}")
        return self.keep(node, read(self, node))

    def keep(self, node: Json, obj: Any) -> Any:
        """Record the object of ``node`` for references to it, and return it."""
        if "id" in node:
            self._made[node["id"]] = obj
        return obj

    def _same(self, node: Json) -> Any:
        if node["as"] not in self._made:
            raise UnplaceableError(
                f"it contains {node['as']!r} a second time, and nothing is there the first time"
            )
        return self._made[node["as"]]

    def class_of(self, node: Json) -> Any:
        cls = self.decode(node["class"])
        if not isinstance(cls, type):
            raise UnplaceableError(
                f"{node['class']} was a class when the checkpoint was written, and is {cls!r} now"
            )
        return cls

    def _named(self, node: Json) -> Any:
        obj = find_named(node["v"])
        if obj is None:
            raise UnplaceableError(
                f"it contains {node['v'].replace(':', '.')}, which does not exist now"
            )
        return obj

    def _tuple(self, node: Json) -> Any:
        parts = self.ordered(node)
        return tuple.__new__(self.class_of(node), parts) if "class" in node else tuple(parts)

    def _container(self, node: Json) -> Any:
        plain = {"dict": dict, "list": list, "deque": deque}
        cls = self.class_of(node) if "class" in node else plain[node[TAG]]
        base: Any = base_of(cls)
        container = self.keep(node, base.__new__(cls))
        base.__init__(container, *([(), node["maxlen"]] if base is deque else []))
        if node[TAG] == "dict":
            for key, item in node["v"]:
                base.__setitem__(container, self.decode(key), self.decode(item))
        else:
            base.extend(container, self.ordered(node))
        return self.with_attributes(container, node.get("attributes", {}))

    def ordered(self, node: Json) -> list[Any]:
        """Return the items of a sequence, which may be in an array."""
        if "packed" in node:
            packed: list[Any] = take_array(node["packed"], self.tensors).tolist()
            return packed
        return [self.decode(item) for item in node["v"]]

    def with_attributes(self, obj: Any, attributes: Mapping[str, Json]) -> Any:
        values = {name: self.decode(item) for name, item in attributes.items()}
        for name, value in values.items():
            sorts.set_field(obj, name, value)
        return obj

    def _object(self, node: Json) -> Any:
        cls = self.class_of(node)
        obj = cls() if cls is types.SimpleNamespace else object.__new__(cls)
        return self.with_attributes(self.keep(node, obj), node["v"])

    def _array(self, node: Json) -> Any:
        array = np.array(take_array(node, self.tensors), subok=True)
        if "axes" in node:
            in_memory = np.array(array.transpose(node["axes"]), order="C", subok=True)
            array = in_memory.transpose(np.argsort(node["axes"]))
        return array.view(_VIEWS[node["class"]]) if "class" in node else array

    def _enum(self, node: Json) -> Any:
        cls = self.class_of(node)
        return cls(node["value"]) if "value" in node else cls[node["v"]]

    def _tensor(self, node: Json) -> Any:
        return tf.convert_to_tensor(take_array(node, self.tensors))

    def _generator(self, node: Json) -> Any:
        state = self.decode(node["v"])
        generator: Any
        if node[TAG] == "Random":
            generator = random.Random()  # noqa: S311 - the user's generator, not a secret
        elif node[TAG] == "RandomState":
            generator = np.random.RandomState()
        elif state["bit_generator"] not in _BIT_GENERATORS:
            raise UnplaceableError(
                f"it contains a generator of the unknown kind {state['bit_generator']!r}"
            )
        else:
            seeds = self.decode(node["seeds"]) if "seeds" in node else None
            sequence = None if seeds is None else np.random.SeedSequence(**seeds)
            generator = np.random.Generator(getattr(np.random, state["bit_generator"])(sequence))
        set_state_of_generator(generator, state)
        return generator


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
    "enum": Decoder._enum,
    "frozenset": lambda d, node: frozenset(d.ordered(node)),
    "masked": lambda _, __: np.ma.masked,
    "named": Decoder._named,
    "object": Decoder._object,
    "set": lambda _, __: set(),
    "same": Decoder._same,
    "symbolic": lambda _, node: tf.TensorSpec(node["shape"], node["dtype"]),
    "scalar": lambda d, node: take_array(node, d.tensors)[()],
    "tensor": Decoder._tensor,
    "tuple": Decoder._tuple,
}


def replicas_of(variable: Any) -> tuple[Any, ...]:
    inner = _inner(variable)
    return tuple(inner.values) if isinstance(inner, tf.distribute.DistributedValues) else (inner,)


def hold_replicas(variable: Any, key: str, tensors: Tensors) -> tuple[str, ...]:
    """Put the value of each replica into ``tensors``, the first one's under ``key``; see `Snapshot.repeated`.

    A tensor shares its variable's buffer. TensorFlow copies a shared buffer before it writes to it,
    so later writes do not change the tensor, and no copy is made here. Of a variable whose readers get a
    sum or a mean, the number of replicas must be known, so no tensor counts as repeated.
    """
    values = {_replica_key(key, i): v.read_value() for i, v in enumerate(replicas_of(variable))}
    tensors.update(values)
    if len(values) == 1 or _is_made_on_read(variable):
        return ()
    return tuple(name for name in values if name != key)


def refuse_replicated(value: object, path: str) -> None:
    """Refuse an object made during training whose variables a resumed process could create only under the strategy."""
    if any(len(replicas_of(variable)) > 1 for variable in sorts.framework_variables(value) or ()):
        reason = (
            f"a {sorts.class_name(type(value))} with a value on each replica, made during training"
        )
        raise NotPlainError(path, value, f"{reason}; make it in the factory")


def held_tensors(key: str, tensors: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that `hold_replicas` put under ``key``; only the first if all were equal."""
    values = [tensors[key]]
    while _replica_key(key, len(values)) in tensors:
        values.append(tensors[_replica_key(key, len(values))])
    return values


def assign_replicas(variable: Any, key: str, tensors: Mapping[str, Any]) -> None:
    """Assign to each replica of ``variable`` the tensor that `hold_replicas` put under ``key``.

    If the number of replicas is another one now, assign `as_one`.
    """
    values = held_tensors(key, tensors)
    replicas = replicas_of(variable)
    if len(values) == 1 and not _is_made_on_read(variable):
        values *= len(replicas)
    if len(values) != len(replicas):
        values = [as_one(variable, key, tensors)]
        replicas = (_inner(variable),)
    for replica, value in zip(replicas, values, strict=True):
        replica.assign(value)


def as_one(variable: Any, key: str, tensors: Mapping[str, Any]) -> Any:
    """Return the value that a reader of ``variable`` gets: the sum, the mean, or the first replica's."""
    values = held_tensors(key, tensors)
    aggregation = _inner(variable).aggregation.name
    if len(values) == 1 or aggregation not in ("SUM", "MEAN") or not _is_made_on_read(variable):
        return values[0]
    total = np.sum(np.stack(values), axis=0, dtype=values[0].dtype)
    return total if aggregation == "SUM" else (total / len(values)).astype(values[0].dtype)


def _is_made_on_read(variable: Any) -> bool:
    """Return whether each replica writes its own value, and reading aggregates them."""
    return _inner(variable).synchronization is tf.VariableSynchronization.ON_READ


def _inner(variable: Any) -> Any:
    inner = getattr(variable, "value", variable)
    return variable if callable(inner) else inner


def _replica_key(key: str, index: int) -> str:
    return key if index == 0 else f"{key}/replica-{index}"
