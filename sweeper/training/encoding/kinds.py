"""Which values have a plain form, and which classes a decoder may make objects of.

Plain: numbers, strings, arrays, containers, paths, dates, compiled patterns, enumeration members,
random generators, and objects of Python classes whose attributes are all plain. Everything else is
refused: functions and classes, variables, locks, files, sockets, threads, iterators, datasets.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

from sweeper.inspection.sorts import class_name, is_library_class

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

_CONTAINERS = (list, tuple, set, frozenset, deque, dict, OrderedDict, Counter, defaultdict)


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


def is_variable(value: object) -> bool:
    """Whether ``value`` is a Keras or a TensorFlow variable."""
    import keras
    import tensorflow as tf

    return isinstance(value, keras.Variable | tf.Variable)


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


def is_plain_object(value: object) -> bool:
    """Whether the value's whole state is in attributes: all its classes are Python's, no library's.

    A library's objects keep more than their attributes tell: locks, handles, caches.
    """
    if not all(cls.__flags__ & (1 << 9) for cls in type(value).__mro__[:-1]):
        return False
    return not is_library_class(type(value))


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


def tells_its_state(thing: object) -> bool:
    """Whether ``thing`` has methods of its own that give and take its state."""
    return callable(getattr(thing, "get_state", None)) and callable(
        getattr(thing, "set_state", None)
    )
