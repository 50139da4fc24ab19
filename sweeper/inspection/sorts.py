"""Sort of an object, by its type alone.

User code such as ``__eq__`` or a proxy's ``__class__``, which ``isinstance`` reads, is never called. So
types are classified, each once, and objects are compared by ``is``.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import random
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf


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
    {
        Sort.MODEL,
        Sort.LAYER,
        Sort.OPTIMIZER,
        Sort.METRIC,
        Sort.LOSS,
        Sort.CALLBACK,
        Sort.INITIALIZER,
        Sort.SCHEDULE,
        Sort.DATASET,
    }
)
"""Sorts of objects of Keras, whose parts are known by name."""


_ATOMS: tuple[type, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    slice,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
)

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values without parts, which containers may hold in large numbers."""

_BY_BASE: tuple[tuple[type, Sort], ...] = (
    (keras.Model, Sort.MODEL),
    (keras.layers.Layer, Sort.LAYER),
    (keras.Variable, Sort.VARIABLE),
    (tf.Variable, Sort.VARIABLE),
    (keras.optimizers.Optimizer, Sort.OPTIMIZER),
    (keras.metrics.Metric, Sort.METRIC),
    (keras.losses.Loss, Sort.LOSS),
    (keras.random.SeedGenerator, Sort.SEEDS),
    (tf.random.Generator, Sort.SEEDS),
    (keras.callbacks.Callback, Sort.CALLBACK),
    (keras.initializers.Initializer, Sort.INITIALIZER),
    (keras.optimizers.schedules.LearningRateSchedule, Sort.SCHEDULE),
    (keras.utils.PyDataset, Sort.DATASET),
    (tf.data.Dataset, Sort.TFDATA),
    (np.random.Generator, Sort.RANDOM),
    (np.random.RandomState, Sort.RANDOM),
    (random.Random, Sort.RANDOM),
    (types.ModuleType, Sort.MODULE),
    (type, Sort.CLASS),
    (list, Sort.LIST),
    (tuple, Sort.LIST),
    (collections.deque, Sort.LIST),
    (weakref.WeakValueDictionary, Sort.DICT),
    (dict, Sort.DICT),
    (types.MappingProxyType, Sort.DICT),
    (set, Sort.SET),
    (frozenset, Sort.SET),
    (weakref.WeakSet, Sort.SET),
    (weakref.ReferenceType, Sort.WEAK),
    (types.FunctionType, Sort.FUNCTION),
    (types.MethodType, Sort.METHOD),
    (functools.partial, Sort.PARTIAL),
    (type(functools.lru_cache(len)), Sort.CACHE),
    (staticmethod, Sort.DESCRIPTOR),
    (classmethod, Sort.DESCRIPTOR),
    (property, Sort.DESCRIPTOR),
    (functools.cached_property, Sort.DESCRIPTOR),
    (contextvars.ContextVar, Sort.CONTEXT),
    (types.CellType, Sort.CELL),
    (np.ndarray, Sort.ARRAY),
    (np.generic, Sort.LEAF),
    (np.dtype, Sort.LEAF),
    (np.ufunc, Sort.LEAF),
    (keras.InputSpec, Sort.LEAF),
    (enum.Enum, Sort.LEAF),
    (tf.Tensor, Sort.LEAF),
    (keras.KerasTensor, Sort.LEAF),
    (keras.DTypePolicy, Sort.LEAF),
    (tf.Graph, Sort.LEAF),
    (tf.DType, Sort.LEAF),
    (tf.TypeSpec, Sort.LEAF),
    (tf.TensorShape, Sort.LEAF),
    (tf.Module, Sort.OBJECT),
    (Path, Sort.LEAF),
)
"""Sorts by base; the first entry whose base is in a type's method resolution order counts."""

_SORT_BY_BASE = {id(base): (rank, sort) for rank, (base, sort) in enumerate(_BY_BASE)}
_sorts: dict[int, tuple[type, Sort]] = {id(t): (t, Sort.LEAF) for t in _ATOMS}
"""Sorts by a type's id, with a reference to the type, so that its id is not reused."""

_OPAQUE = frozenset(
    {
        *("absl", "h5py", "jax", "jaxlib", "ml_dtypes", "numpy", "pandas", "scipy", "sweeper"),
        *("tensorflow", "torch"),
        *("_io", "_thread", "ast", "asyncio", "concurrent", "datetime", "decimal", "fractions"),
        *("inspect", "io", "logging", "multiprocessing", "os", "pathlib", "re", "socket", "ssl"),
        *("subprocess", "threading", "typing", "uuid"),
    }
)
"""Libraries whose objects hold no objects of the user, except for the sorts above."""

_LIBRARIES = frozenset({"keras", "numpy", "sweeper", "tensorflow"})
_OPENED = frozenset(
    {"_thread._local", "sweeper.train.data.Data", "sweeper.train.step.TrainingStep"}
)
"""Classes of these libraries whose objects hold objects of the user."""

_HERE = str(Path(__file__).parents[1])


def sort_of(obj: object) -> Sort:
    """Return the sort of ``obj``."""
    cls = type(obj)
    known = _sorts.get(id(cls))
    if known is not None:
        return known[1]
    sort = _classify(cls)
    _sorts[id(cls)] = (cls, sort)
    return sort


def _classify(cls: type) -> Sort:
    bases = type.__dict__["__mro__"].__get__(cls)
    ranked = [_SORT_BY_BASE[id(base)] for base in bases if id(base) in _SORT_BY_BASE]
    if ranked:
        return min(ranked, key=lambda found: found[0])[1]
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
    """Return the module and qualified name of ``cls``."""
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
    """Return whether the user's own code defines ``cls``."""
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


_dicts: dict[int, tuple[type, Any, tuple[Any, ...], bool]] = {}


def may_have_fields(cls: type) -> bool:
    """Return whether objects of ``cls`` can have attributes."""
    _, getter, slots, is_local = _known_fields(cls)
    return getter is not None or bool(slots) or is_local


def _known_fields(cls: type) -> tuple[type, Any, tuple[Any, ...], bool]:
    known = _dicts.get(id(cls))
    if known is None:
        known = _dicts[id(cls)] = (cls, *_fields(cls), threading.local in cls.__mro__)
    return known


def fields_of(obj: object) -> dict[str, Any]:
    """Return the attributes of ``obj`` itself, including slots, without running properties."""
    _, getter, slots, is_local = _dicts.get(id(type(obj))) or _known_fields(type(obj))
    fields: dict[str, Any] = {}
    if is_local:
        local: Any = obj
        found = threading.local.__getattribute__(local, "__dict__")
        fields = found if type(found) is dict else {}
    elif getter is not None:
        try:
            found = getter.__get__(obj)
        except AttributeError:  # a proxy of wrapt's asks what it stands for, which may have none
            found = None
        fields = found if type(found) is dict else {}
    if not slots:
        return fields
    fields = dict(fields)
    for name, slot in slots:
        try:
            fields[name] = slot.__get__(obj)
        except AttributeError:
            continue
    return fields


_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_NO_SLOTS = frozenset({"__dict__", "__weakref__"})


def _fields(cls: type) -> tuple[Any, tuple[Any, ...]]:
    getter = None
    slots = []
    for base in type.__dict__["__mro__"].__get__(cls):
        own = type.__dict__["__dict__"].__get__(base)
        found = own.get("__dict__")
        if getter is None and type(found) in _MEMBERS:
            getter = found
        slots += [
            (name, member)
            for name, member in own.items()
            if type(member) is types.MemberDescriptorType and name not in _NO_SLOTS
        ]
    return getter, tuple(slots)


def is_variable(value: object) -> bool:
    """Return whether ``value`` is a Keras or a TensorFlow variable."""
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


def is_written_in_python(cls: type) -> bool:
    """Return whether ``cls`` and all its bases but `object` are written in Python."""
    return all(base.__flags__ & HEAP for base in cls.__mro__[:-1])


def is_plain_object(value: object) -> bool:
    """Return whether the value's complete state is in its attributes.

    This holds if all its classes are written in Python and not in a library: objects of libraries may
    have locks, handles and caches.
    """
    return is_written_in_python(type(value)) and not is_library_class(type(value))


def tells_its_state(obj: object) -> bool:
    """Return whether ``obj`` has methods ``get_state`` and ``set_state``."""
    return callable(getattr(obj, "get_state", None)) and callable(getattr(obj, "set_state", None))


def set_field(obj: Any, name: str, value: Any) -> None:
    """Set an attribute or slot of ``obj``, without running properties or ``__setattr__``."""
    own, member = own_dict(obj), _slot(type(obj), name)
    if member is not None:
        member.__set__(obj, value)
    elif own is not None:
        own[name] = value
    else:
        object.__setattr__(obj, name, value)


def delete_field(obj: Any, name: str) -> None:
    """Delete an attribute or slot of ``obj``, if it has it."""
    own, member = own_dict(obj), _slot(type(obj), name)
    if own is not None and name in own:
        del own[name]
    elif member is not None and name in fields_of(obj):
        member.__delete__(obj)


def list_in_wrapper(obj: object) -> list[Any] | None:
    """Return the items in TensorFlow's wrapper of a list that is an attribute; None for other objects."""
    if type(obj).__name__ != "ListWrapper":
        return None
    stored = fields_of(obj).get("_storage")
    return stored if type(stored) is list else None


def _slot(cls: type, name: str) -> Any:
    found = (vars(base).get(name) for base in cls.__mro__)
    return next((each for each in found if isinstance(each, types.MemberDescriptorType)), None)


def own_dict(obj: Any) -> dict[str, Any] | None:
    """Return the object's ``__dict__``, or None, without running the user's code."""
    is_local = threading.local in type(obj).__mro__
    get: Any = (threading.local if is_local else object).__getattribute__
    try:
        found = get(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None
