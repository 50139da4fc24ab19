"""What sort of thing an object is, by its type alone.

An object's own word is never taken: ``isinstance`` asks ``__class__``, which a proxy answers as it
likes, and ``==`` may say anything. So types are looked at, each once, and objects are distinguished by
``is``.
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
    """A sort of object. The value is the word for it in messages."""

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
"""What Keras and TensorFlow make, and whose own parts are known by name."""


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
"""The first base that is in a type's method resolution order says the sort."""

_SORT_BY_BASE = {id(base): (rank, sort) for rank, (base, sort) in enumerate(_BY_BASE)}
_sorts: dict[int, tuple[type, Sort]] = {id(t): (t, Sort.LEAF) for t in _ATOMS}
"""By a type's id; the type itself is held, so that its id stays its own."""

_users: dict[str, bool] = {}
_OPAQUE = frozenset(
    {
        *("absl", "h5py", "jax", "jaxlib", "ml_dtypes", "numpy", "pandas", "scipy", "sweeper"),
        *("tensorflow", "torch"),
        *("_io", "_thread", "ast", "asyncio", "concurrent", "datetime", "decimal", "fractions"),
        *("inspect", "io", "logging", "multiprocessing", "os", "pathlib", "re", "socket", "ssl"),
        *("subprocess", "threading", "typing", "uuid"),
    }
)
"""Libraries whose objects hold nothing of the user's, beside the sorts above."""

_LIBRARIES = frozenset({"keras", "numpy", "sweeper", "tensorflow"})
_OPENED = frozenset(
    {"_thread_local", "sweeper.training.dataData", "sweeper.training.stepTrainingStep"}
)
_HERE = str(Path(__file__).parents[1])


def sort_of(thing: object) -> Sort:
    """The sort of ``thing``. Nothing of it is called."""
    cls = type(thing)
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
        return Sort.OBJECT if module_of(cls) + cls.__name__ in _OPENED else Sort.LEAF
    return Sort.OBJECT


def class_name(cls: type) -> str:
    """Module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_library_class(cls: type) -> bool:
    """Whether Keras, TensorFlow, NumPy, Python or this package defines the class."""
    root = cls.__module__.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def module_of(cls: type) -> str:
    """The module that defines ``cls``, whatever a class of the user's makes of ``__module__``."""
    module = type.__dict__["__dict__"].__get__(cls).get("__module__", "")
    return module if type(module) is str else ""


def is_users_class(cls: type) -> bool:
    """Whether the user's own code defines ``cls``."""
    return is_users_module(module_of(cls))


def is_users_module(name: str) -> bool:
    """Whether the module of that name is the user's own: neither Python's nor installed."""
    known = _users.get(name)
    if known is None:
        known = _users[name] = _is_users_module(name)
    return known


def _is_users_module(name: str) -> bool:
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


def label_of(thing: Any, sort: Sort) -> str:
    """The name that the user, or Keras, gave to ``thing``; a callback's or an object's class."""
    if sort in (Sort.CALLBACK, Sort.OBJECT, Sort.DATASET, Sort.RANDOM, Sort.ITERATOR):
        return type(thing).__name__
    if sort in (Sort.LOSS, Sort.INITIALIZER, Sort.SCHEDULE):
        name = fields_of(thing).get("name")
        return name if type(name) is str and name else type(thing).__name__
    fields = fields_of(thing)
    name = fields.get("name", fields.get("_name", fields.get("_handle_name")))
    return name.removesuffix(":0") if type(name) is str else ""


_dicts: dict[int, tuple[type, Any, tuple[Any, ...], bool]] = {}


def may_have_fields(cls: type) -> bool:
    """Whether objects of ``cls`` have a place for attributes, whatever is in it now."""
    _, getter, slots, is_local = _known_fields(cls)
    return getter is not None or bool(slots) or is_local


def _known_fields(cls: type) -> tuple[type, Any, tuple[Any, ...], bool]:
    known = _dicts.get(id(cls))
    if known is None:
        known = _dicts[id(cls)] = (cls, *_fields(cls), threading.local in cls.__mro__)
    return known


def fields_of(thing: object) -> dict[str, Any]:
    """The attributes of ``thing`` itself, those in slots included; no property is run."""
    _, getter, slots, is_local = _dicts.get(id(type(thing))) or _known_fields(type(thing))
    fields: dict[str, Any] = {}
    if is_local:
        local: Any = thing
        found = threading.local.__getattribute__(local, "__dict__")
        fields = found if type(found) is dict else {}
    elif getter is not None:
        found = getter.__get__(thing)
        fields = found if type(found) is dict else {}
    if not slots:
        return fields
    fields = dict(fields)
    for name, slot in slots:
        try:
            fields[name] = slot.__get__(thing)
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
