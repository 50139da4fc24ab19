"""Which values have a plain form, which are constants, and which hold what nobody can save.

Plain: numbers, strings, arrays, variables, containers, paths, dates, compiled patterns, enumeration
members, random generators, and objects of Python classes whose attributes are all plain.
Constant: what is the same in every process that runs the study's code: classes, modules, Keras
layers' configuration objects, loggers. Everything else is refused: locks, files, sockets, threads,
iterators, datasets.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import logging
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = [
    "FACTORIES",
    "assigned_by",
    "attributes_of",
    "can_be_found",
    "class_name",
    "closure_of",
    "find_class",
    "framework_variables",
    "inner_function",
    "is_code",
    "is_constant",
    "is_library_class",
    "is_plain_object",
    "is_variable",
    "kind_of_container",
    "read_keras",
]

FACTORIES: Mapping[str, Any] = {
    "None": None,
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "deque": deque,
}
"""What a ``defaultdict`` may make its missing values with."""

_CONTAINERS = (
    list,
    tuple,
    set,
    frozenset,
    deque,
    dict,
    OrderedDict,
    Counter,
    defaultdict,
)
_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
_LIBRARIES = ("keras", "tensorflow", "numpy", "sweeper")


def class_name(cls: type) -> str:
    """Module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_library_class(cls: type) -> bool:
    """Whether Keras, TensorFlow, NumPy, Python or this package defines the class."""
    root = cls.__module__.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def is_variable(value: object) -> bool:
    """Whether ``value`` is a Keras or a TensorFlow variable."""
    import keras
    import tensorflow as tf

    return isinstance(value, keras.Variable | tf.Variable)


def kind_of_container(value: object) -> str | None:
    """What kind of container ``value`` is; Keras's tracking ones count as what they wrap."""
    if type(value) in _CONTAINERS:
        return type(value).__name__
    if type(value).__module__ == "keras.src.utils.tracking":
        for kind in (OrderedDict, dict, list, set):
            if isinstance(value, kind):
                return kind.__name__
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "namedtuple"
    return None


def framework_variables(value: Any) -> list[Any] | None:
    """The variables that are the state of one of Keras's or TensorFlow's objects, or None."""
    import keras
    import tensorflow as tf

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


def is_code(value: object) -> bool:
    """Whether ``value`` is a function, a method or a partial of one."""
    return isinstance(value, _CODE)


def is_constant(value: object) -> bool:
    """Whether ``value`` is made by the study's code and changed by nothing."""
    import keras
    import tensorflow as tf

    if is_library_class(type(value)) and type(value).__module__.startswith("sweeper."):
        return True
    return isinstance(
        value,
        type
        | types.ModuleType
        | np.dtype
        | np.ufunc
        | logging.Logger
        | tf.DType
        | tf.TensorShape
        | tf.summary.SummaryWriter
        | keras.DTypePolicy
        | tf.types.experimental.GenericFunction,
    ) or (
        isinstance(
            value,
            keras.losses.Loss
            | keras.initializers.Initializer
            | keras.regularizers.Regularizer
            | keras.constraints.Constraint
            | keras.optimizers.schedules.LearningRateSchedule,
        )
        and is_library_class(type(value))
    )


def is_plain_object(value: object) -> bool:
    """Whether the value's whole state is in attributes: all its classes are Python's, no library's.

    A library's objects keep more than their attributes tell: locks, handles, caches.
    """
    if not all(cls.__flags__ & (1 << 9) for cls in type(value).__mro__[:-1]):
        return False
    return not is_library_class(type(value))


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's attributes, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def can_be_found(cls: type) -> bool:
    """Whether a value of the class can be made anew: found by its name, and no code run for it."""
    makes_no_calls = (
        dataclasses.is_dataclass(cls) or issubclass(cls, tuple) or hasattr(cls, "__members__")
    )
    return makes_no_calls and find_class(class_name(cls)) is cls


def find_class(name: str) -> type | None:
    """The class of that name in a module that is loaded; nothing is imported."""
    for module_name in sorted(sys.modules, key=len, reverse=True):
        if name.startswith(f"{module_name}."):
            found: Any = sys.modules[module_name]
            for part in name[len(module_name) + 1 :].split("."):
                found = getattr(found, "__dict__", {}).get(part)
            if isinstance(found, type):
                return found
    return None


def closure_of(code: Any) -> dict[str, Any] | str:
    """What a function keeps from call to call, by name, or why that cannot be known."""
    if isinstance(code, functools.partial):
        inner = closure_of(code.func)
        if isinstance(inner, str):
            return inner
        given = {f"argument {i}": value for i, value in enumerate(code.args)}
        return {**inner, **given, **{f"argument {k}": v for k, v in code.keywords.items()}}
    owner = getattr(code, "__self__", None)
    found: dict[str, Any] = {}
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        if isinstance(code, types.BuiltinFunctionType):
            return f"the method {code.__name__} of a {type(owner).__name__}"
        found["self"] = owner
    function = getattr(code, "__func__", code)
    if not isinstance(function, types.FunctionType):
        return found
    changed = sorted(_stores(function.__code__, "STORE_GLOBAL"))
    if changed:
        return f"a function that changes the global variable {changed[0]!r}"
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if any(isinstance(value, list | dict | set | bytearray | deque) for value in defaults):
        return "a function with a default argument that can change"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def assigned_by(cls: type, *, library: bool) -> frozenset[str]:
    """The attributes that methods of ``cls`` and its bases assign to ``self``.

    Args:
        cls: A class.
        library: Whether to look at the bases that a library defines, or at the user's own.
    """
    hashable: Any = cls
    return _assigned_by(hashable, library)


@functools.cache
def _assigned_by(cls: Any, library: bool) -> frozenset[str]:
    found: set[str] = set()
    for base in cls.__mro__:
        if is_library_class(base) is not library:
            continue
        for member in vars(base).values():
            for function in (member, getattr(member, "fget", None), getattr(member, "fset", None)):
                code = getattr(inner_function(function), "__code__", None)
                if code is not None:
                    found |= _stores(code, "STORE_ATTR")
    return frozenset(found)


def read_keras() -> None:
    """Read the code of Keras's base classes and commonest ones now, for every process forked later."""
    import keras

    layers = keras.layers
    for cls in (
        *(keras.Model, keras.Sequential, layers.Dense, layers.Dropout, layers.BatchNormalization),
        *(layers.Conv2D, layers.Embedding, layers.LSTM, layers.LayerNormalization),
        *(keras.optimizers.Adam, keras.optimizers.SGD, keras.callbacks.Callback),
        *(keras.losses.MeanSquaredError, keras.metrics.MeanSquaredError),
    ):
        assigned_by(cls, library=True)


def inner_function(function: Any) -> Any:
    """What a decorated function wraps."""
    return getattr(function, "__wrapped__", getattr(function, "__func__", function))


@functools.cache
def _stores(code: types.CodeType, operation: str) -> frozenset[str]:
    """Names that the code assigns: global ones, or attributes of its first argument."""
    if dis.opmap[operation] not in code.co_code[::2]:
        return frozenset()
    found = set()
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == operation and (
            operation == "STORE_GLOBAL" or _is_first_argument(before, code)
        ):
            found.add(str(instruction.argval))
        before = instruction
    return frozenset(found)


def _is_first_argument(instruction: Any, code: types.CodeType) -> bool:
    """Whether the instruction loads the first argument; ``self.x += 1`` swaps it into place."""
    if instruction is None or instruction.opname == "SWAP":
        return instruction is not None
    loaded = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return instruction.opname.startswith("LOAD_FAST") and loaded[-1:] == code.co_varnames[:1]
