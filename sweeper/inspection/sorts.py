"""Sort of an object, by its type alone.

User code such as ``__eq__`` or a proxy's ``__class__``, which ``isinstance`` reads, is never called. So
types are classified, each once, and objects are compared by ``is``.
"""

import collections
import contextlib
import contextvars
import enum
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

_Result = TypeVar("_Result")


class Sort(enum.Enum):
    """A sort of object. The value is its name in messages."""

    MODEL = "model"
    LAYER = "layer"
    VARIABLE = "variable"
    OPTIMIZER = "optimizer"
    METRIC = "metric"
    LOSS = "loss"
    SEEDS = "seed generator"
    RANDOM = "random generator"
    CALLBACK = "callback"
    INITIALIZER = "initializer"
    SCHEDULE = "schedule"
    DATASET = "data"
    TFDATA = "dataset"
    ITERATOR = "iterator"
    LIST = "list"
    DICT = "dict"
    SET = "set"
    OBJECT = "object"
    FUNCTION = "function"
    METHOD = "method"
    PARTIAL = "partial"
    CACHE = "cache"
    WEAK = "weak reference"
    CONTEXT = "context variable"
    WRAPPED = "wrapped object"
    CLASS = "class"
    MODULE = "module"
    ARRAY = "array"
    DESCRIPTOR = "descriptor"
    CELL = "cell"
    LEAF = ""


OF_KERAS = frozenset(
    {Sort.MODEL, Sort.LAYER, Sort.OPTIMIZER, Sort.METRIC, Sort.LOSS, Sort.CALLBACK}
    | {Sort.INITIALIZER, Sort.SCHEDULE, Sort.DATASET}
)
"""Sorts of objects of Keras, whose parts are known by name."""


PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values without parts, which containers may hold in large numbers."""

_ATOMS = (
    *PLAIN_TYPES,
    bytearray,
    range,
    slice,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
)
"""Types of leaves; their subclasses may have attributes."""

_BY_BASE: tuple[tuple[Sort, tuple[type, ...]], ...] = (
    (Sort.MODEL, (keras.Model,)),
    (Sort.LAYER, (keras.layers.Layer,)),
    (Sort.VARIABLE, (keras.Variable, tf.Variable)),
    (Sort.OPTIMIZER, (keras.optimizers.Optimizer,)),
    (Sort.METRIC, (keras.metrics.Metric,)),
    (Sort.LOSS, (keras.losses.Loss,)),
    (Sort.SEEDS, (keras.random.SeedGenerator, tf.random.Generator)),
    (Sort.CALLBACK, (keras.callbacks.Callback,)),
    (Sort.INITIALIZER, (keras.initializers.Initializer,)),
    (Sort.SCHEDULE, (keras.optimizers.schedules.LearningRateSchedule,)),
    (Sort.DATASET, (keras.utils.PyDataset,)),
    (Sort.TFDATA, (tf.data.Dataset,)),
    (Sort.RANDOM, (np.random.Generator, np.random.RandomState, random.Random)),
    (Sort.MODULE, (types.ModuleType,)),
    (Sort.CLASS, (type,)),
    (Sort.LIST, (list, tuple, collections.deque)),
    (Sort.DICT, (weakref.WeakValueDictionary, dict, types.MappingProxyType)),
    (Sort.SET, (set, frozenset, weakref.WeakSet)),
    (Sort.WEAK, (weakref.ReferenceType,)),
    (Sort.FUNCTION, (types.FunctionType,)),
    (Sort.METHOD, (types.MethodType,)),
    (Sort.PARTIAL, (functools.partial,)),
    (Sort.CACHE, (type(functools.lru_cache(len)),)),
    (Sort.DESCRIPTOR, (staticmethod, classmethod, property, functools.cached_property)),
    (Sort.CONTEXT, (contextvars.ContextVar,)),
    (Sort.CELL, (types.CellType,)),
    (Sort.ITERATOR, (types.CoroutineType,)),
    (Sort.LEAF, (type(np.ma.masked),)),
    (Sort.ARRAY, (np.ndarray,)),
    (Sort.LEAF, (np.generic, np.dtype, np.ufunc, enum.Enum, Path)),
    (Sort.LEAF, (keras.InputSpec, keras.KerasTensor, keras.DTypePolicy)),
    (Sort.LEAF, (tf.Tensor, tf.Graph, tf.DType, tf.TypeSpec, tf.TensorShape)),
    (Sort.OBJECT, (tf.Module,)),
)
"""Sorts by base; the first row with a base in a type's method resolution order counts."""
_RANKED = {id(base): (rank, sort) for rank, (sort, bases) in enumerate(_BY_BASE) for base in bases}

_OPAQUE = frozenset(
    {
        "absl",
        "h5py",
        "jax",
        "jaxlib",
        "ml_dtypes",
        "numpy",
        "pandas",
        "scipy",
        "sweeper",
        "tensorflow",
        "_io",
        "_thread",
        "ast",
        "asyncio",
        "concurrent",
        "datetime",
        "decimal",
        "fractions",
        "inspect",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "re",
        "socket",
        "ssl",
        "subprocess",
        "threading",
        "typing",
        "uuid",
    }
)
"""Libraries whose objects hold no objects of the user, except for the sorts above."""

_LIBRARIES = frozenset({"keras", "numpy", "sweeper", "tensorflow"})
_OPENED = frozenset(
    {"_thread._local", "sweeper.train.data.Data", "sweeper.train.step.TrainingStep"}
)
"""Classes of these libraries whose objects hold objects of the user."""

_HERE = str(Path(__file__).parents[1])


def per_class(function: Callable[[type], _Result]) -> Callable[[type], _Result]:
    """Cache the results of a function by the identity of a class, whose metaclass may define ``__eq__``."""
    results: dict[int, tuple[type, _Result]] = {}

    def cached(cls: type) -> _Result:
        entry = results.get(id(cls))
        if entry is None:
            # The reference to the class keeps its id from being used again.
            entry = results[id(cls)] = (cls, function(cls))
        return entry[1]

    return cached


def sort_of(obj: object) -> Sort:
    return _sort_of_class(type(obj))


@per_class
def _sort_of_class(cls: type) -> Sort:
    bases = type.__dict__["__mro__"].__get__(cls)
    ranked = [_RANKED[id(base)] for base in bases if id(base) in _RANKED]
    if any(cls is atom for atom in _ATOMS):
        return Sort.LEAF
    if ranked:
        return min(ranked, key=lambda row: row[0])[1]
    module = module_of(cls)
    root = module.partition(".")[0]
    if root in ("wrapt", "tensorflow") and any(module_of(b).startswith("wrapt") for b in bases):
        return Sort.WRAPPED
    if any("__next__" in vars(base) for base in bases):
        return Sort.ITERATOR
    if root in _OPAQUE:
        return Sort.OBJECT if f"{module}.{cls.__name__}" in _OPENED else Sort.LEAF
    return Sort.OBJECT


def class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_library_class(cls: type) -> bool:
    """Return whether Keras, TensorFlow, NumPy, Python or this package defines the class."""
    root = cls.__module__.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def module_of(cls: type) -> str:
    """Return the module that defines ``cls``, without calling a metaclass; "" if it is not text."""
    module = type.__dict__["__dict__"].__get__(cls).get("__module__", "")
    return module if type(module) is str else ""


def is_users_class(cls: type) -> bool:
    return is_users_module(module_of(cls))


@functools.cache
def is_users_module(name: str) -> bool:
    """Return whether the module ``name`` is the user's own: neither Python's nor installed."""
    root = name.partition(".")[0]
    if name == "__main__":
        return True
    if not name or root == "builtins" or root in _LIBRARIES:
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None) if type(module) is types.ModuleType else None
    if type(file) is not str:
        return root not in sys.builtin_module_names and root not in sys.stdlib_module_names
    path = str(Path(file).resolve())
    if "site-packages" in path or "dist-packages" in path or path.startswith(_HERE):
        return False
    return not path.startswith(str(Path(types.__file__).resolve().parent))


def label_of(obj: Any, sort: Sort) -> str:
    """Return the name of ``obj`` that the user or Keras gave; for some sorts the name of its class."""
    if sort in (Sort.CALLBACK, Sort.OBJECT, Sort.DATASET, Sort.RANDOM, Sort.ITERATOR):
        return type(obj).__name__
    if sort in (Sort.LOSS, Sort.INITIALIZER, Sort.SCHEDULE):
        name = fields_of(obj).get("name")
        return name if type(name) is str and name else type(obj).__name__
    fields = fields_of(obj)
    name = fields.get("name", fields.get("_name", fields.get("_handle_name")))
    return name.removesuffix(":0") if type(name) is str else ""


_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)


@per_class
def _storage(cls: type) -> tuple[Callable[[Any], Any] | None, dict[str, Any]]:
    """Return the reader of ``__dict__`` of the objects of ``cls``, if they have one, and their slots."""
    bases = type.__dict__["__mro__"].__get__(cls)
    if threading.local in bases:
        return lambda obj: threading.local.__getattribute__(obj, "__dict__"), {}
    reader: Callable[[Any], Any] | None = None
    slots: dict[str, Any] = {}
    for base in bases:
        members = type.__dict__["__dict__"].__get__(base)
        descriptor = members.get("__dict__")
        if reader is None and type(descriptor) in _MEMBERS:
            reader = descriptor.__get__
        for name, member in members.items():
            if type(member) is types.MemberDescriptorType and name != "__dict__":
                slots.setdefault(name, member)
    return reader, slots


def may_have_fields(cls: type) -> bool:
    reader, slots = _storage(cls)
    return reader is not None or bool(slots)


def own_dict(obj: Any) -> dict[str, Any] | None:
    """Return the object's ``__dict__``, or None, without running the user's code."""
    return _read(_storage(type(obj))[0], obj)


def _read(reader: Callable[[Any], Any] | None, obj: Any) -> dict[str, Any] | None:
    try:
        fields = None if reader is None else reader(obj)
    except AttributeError:  # a proxy of wrapt's reads it from its object, which may have none
        return None
    return fields if type(fields) is dict else None


def fields_of(obj: object) -> dict[str, Any]:
    """Return the attributes of ``obj`` itself, including slots, without running properties."""
    reader, slots = _storage(type(obj))
    fields = _read(reader, obj)
    if not slots:
        return {} if fields is None else fields
    fields = dict(fields or {})
    for name, slot in slots.items():
        # A slot that was never assigned has no value.
        with contextlib.suppress(AttributeError):
            fields[name] = slot.__get__(obj)
    return fields


def set_field(obj: Any, name: str, value: Any) -> None:
    """Set an attribute or slot of ``obj``, without running properties or ``__setattr__``."""
    slot = _storage(type(obj))[1].get(name)
    attributes = own_dict(obj)
    if slot is not None:
        slot.__set__(obj, value)
    elif attributes is not None:
        attributes[name] = value
    else:
        object.__setattr__(obj, name, value)


def delete_field(obj: Any, name: str) -> None:
    attributes = own_dict(obj)
    if attributes is not None and name in attributes:
        del attributes[name]
    elif name in fields_of(obj):
        _storage(type(obj))[1][name].__delete__(obj)


def list_in_wrapper(obj: object) -> list[Any] | None:
    """Return the items in TensorFlow's wrapper of a list that is an attribute; None for other objects."""
    if type(obj).__name__ != "ListWrapper":
        return None
    items = fields_of(obj).get("_storage")
    return items if type(items) is list else None


def is_variable(value: object) -> bool:
    return isinstance(value, keras.Variable | tf.Variable)


def framework_variables(value: Any) -> list[Any] | None:
    """Return the variables of an object of Keras or TensorFlow; None for other objects."""
    if is_variable(value):
        return [value]
    if isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
        return [value.state]
    if isinstance(value, keras.Model):
        optimizer = value.optimizer.variables if getattr(value, "optimizer", None) else []
        return [*value.variables, *value.metrics_variables, *optimizer]
    if isinstance(value, keras.layers.Layer):
        return [*value.variables, *value.metrics_variables]
    if isinstance(value, keras.optimizers.Optimizer | keras.metrics.Metric | tf.Module):
        return list(value.variables)
    return None


HEAP = 1 << 9
"""CPython's flag of a class that is written in Python, or in C with a type object on the heap."""
IMMUTABLE = 1 << 8
"""CPython's flag of a class that is written in C, also with a type object on the heap, such as a lock's since 3.13."""


def is_written_in_python(cls: type) -> bool:
    """Return whether ``cls`` and all its bases but `object` are written in Python."""
    return all(base.__flags__ & (HEAP | IMMUTABLE) == HEAP for base in cls.__mro__[:-1])


def tells_its_state(obj: object) -> bool:
    """Return whether an object has ``get_state`` and ``set_state``."""
    return callable(getattr(obj, "get_state", None)) and callable(getattr(obj, "set_state", None))
