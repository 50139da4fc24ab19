"""Walk over objects: the edges from each kind of object, and a traversal that visits each object once.

No code of the user is run: attributes are read from ``__dict__`` and slots, and containers with the
iterators of their built-in classes. Parts of Keras's and TensorFlow's objects have the names that users
know. Keras's connections between layers are left out, because through them a layer leads to every model
that uses it.

A visitor gets each object with its path, and returns the edges to follow, usually some of `edges_of`.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import itertools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from sweeper.inspection import keras_names, sorts
from sweeper.inspection.code import (
    assigned_by,
    globals_of,
    imported_modules,
    named_defaults,
    names_in,
    stored_globals,
)

MODULE_ATTRIBUTE = "module attribute "
_CLASS_ATTRIBUTE = "class attribute "


class ObjectPath(NamedTuple):
    """Path to an object, for the user.

    Parts are appended with an arrow to a ``phrase``. The ``label`` is shown only in the paths of the parts.
    """

    text: str
    phrase: bool = False
    label: str = ""

    def attribute(self, name: str) -> ObjectPath:
        if self.label:
            return ObjectPath(f"{self.text} {self.label!r} → {name}")
        return ObjectPath(f"{self.text} → {name}" if self.phrase else f"{self.text}.{name}")

    def item(self, key: object, label: str = "") -> ObjectPath:
        """Return the path to an item of a list or a dict; ``label`` names the item."""
        text = repr(key) if type(key) in (int, str, bool, type(None)) else "…"
        path = f"[{text}]"
        if self.label:
            path = f" {self.label!r} → {path}"
        elif self.phrase:
            path = f" → {path}"
        return ObjectPath(f"{self.text}{path}", label=label)

    def argument(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.text}({name}=…)")

    def noted(self, what: str) -> ObjectPath:
        """Return the path to a part without a name, which ``what`` describes."""
        return ObjectPath(f"{what} of {self._bare()}", phrase=True)

    def given(self, name: str) -> ObjectPath:
        return ObjectPath(f"argument {name} of the partial {self._bare()}", phrase=True)

    def owner(self, kind: str) -> ObjectPath:
        """Return the path to the object that the method here is bound to."""
        return ObjectPath(f"the {kind} that {self._bare()} is bound to", phrase=True)

    def of_class(self) -> ObjectPath:
        """Return the path to the class here, for paths of its attributes."""
        if self.text.startswith(MODULE_ATTRIBUTE):
            return ObjectPath(_CLASS_ATTRIBUTE + self._bare(), self.phrase)
        return self

    def _bare(self) -> str:
        return self.text.removeprefix(MODULE_ATTRIBUTE).removeprefix(_CLASS_ATTRIBUTE)


MOST = 200_000
"""Maximum number of objects that one walk visits."""


class How(enum.Enum):
    """Ways in which one object leads to another."""

    HELD = enum.auto()
    FIELD = enum.auto()
    """An attribute."""
    USED = enum.auto()
    """An object that a function uses: in its closure, as a default, as a module variable."""
    LISTED = enum.auto()
    """An item of one of Keras's lists, except layers."""
    LAYER = enum.auto()
    """A layer that Keras lists."""
    COMPILED = enum.auto()
    """Arguments that a model was compiled with."""


class Edge(NamedTuple):
    """An edge to an object at a path; ``name`` is that of the attribute for `How.FIELD`."""

    path: ObjectPath
    obj: Any
    how: How = How.HELD
    name: str = ""


Visitor = Callable[[Edge, int], Iterable[Edge] | None]
"""Function of an edge and of the number of the visit that it comes from (-1 for a root).

It returns the edges to follow; None if the object does not count as a visit.
"""


def walk(
    roots: Iterable[Edge], visit: Visitor, *, most: int | None = None, breadth: bool = False
) -> bool:
    """Visit everything that the roots lead to, each object once; return whether the walk was cut.

    An object that two roots lead to belongs to the first. After ``most`` visits (`MOST` by default) the walk is cut.
    """
    visited: dict[int, Any] = {}
    """Visited objects by id, referenced so that ids are not reused."""
    waiting = deque((edge, -1) for edge in roots)
    if not breadth:
        waiting.reverse()
    count = 0
    limit = MOST if most is None else most
    while waiting:
        edge, parent = waiting.popleft() if breadth else waiting.pop()
        if id(edge.obj) in visited:
            continue
        if count >= limit:
            return True
        visited[id(edge.obj)] = edge.obj
        inside = visit(edge, parent)
        if inside is None:
            continue
        new_edges = [(child, count) for child in inside if id(child.obj) not in visited]
        if not breadth:
            new_edges.reverse()
        waiting += new_edges
        count += 1
    return False


def edges_of(obj: Any, sort: sorts.Sort, path: ObjectPath) -> Iterable[Edge]:
    if sort in sorts.OF_KERAS:
        return _of_keras(obj, sort, path)
    edges = _OTHERS.get(sort)
    return () if edges is None else edges(obj, path)


def _of_keras(obj: Any, sort: sorts.Sort, path: ObjectPath) -> Iterator[Edge]:
    """Yield the attributes in the order in which they were set, then the items of Keras's lists."""
    fields = sorts.fields_of(obj)
    users = sorts.is_users_class(type(obj))
    for name, value in list(fields.items()):
        if not is_bookkeeping(type(obj), name):
            where = path.attribute(name if users else name.lstrip("_"))
            yield Edge(where, value, How.FIELD, name)
    if sort is sorts.Sort.OPTIMIZER:
        rate = fields.get("_learning_rate")
        if sorts.sort_of(rate) is sorts.Sort.SCHEDULE:
            yield Edge(path.attribute("learning_rate"), rate, How.LISTED)
    for name in _OWN_LISTS.get(sort, keras_names.LISTS):
        if sorts.sort_of(fields.get(name)) is sorts.Sort.LIST:
            for value in _items_of(fields[name]):
                label = sorts.label_of(value, sorts.sort_of(value)) or name.lstrip("_")
                yield Edge(path.attribute(label), value, How.LISTED)
    listed = path.attribute("layers")
    for index, layer in enumerate(_layers_of(obj, fields)):
        where = listed.item(index, sorts.label_of(layer, sorts.sort_of(layer)))
        yield Edge(where, layer, How.LAYER)
    if sort is sorts.Sort.MODEL:
        yield from _compiled(fields, path)


_OWN_LISTS = {
    sorts.Sort.OPTIMIZER: (keras_names.VARIABLES,),
    sorts.Sort.METRIC: (keras_names.VARIABLES, "_metrics"),
}
"""Keras's lists of an optimizer's or a metric's own parts; others of an optimizer have the model's weights."""

BOOKKEEPING = frozenset().union(
    keras_names.CONNECTIONS,
    keras_names.REBUILT,
    keras_names.OWN,
    keras_names.FUNCTIONS,
    {keras_names.OPTIMIZER, keras_names.VARIABLES, keras_names.LAYERS},
    keras_names.COMPILED,
    keras_names.LISTS,
)
"""Names of Keras's own attributes, and of attributes whose objects have other paths for users."""


def is_bookkeeping(cls: type, name: str) -> bool:
    """Return whether ``name`` is an attribute of Keras's own on objects of ``cls``."""
    if name.startswith(keras_names.TRACKING_PREFIXES):
        return True
    if name not in BOOKKEEPING:
        return False
    return name not in assigned_by_user(cls) or name in assigned_by_keras(cls)


@functools.cache
def assigned_by_keras(cls: Any) -> frozenset[str]:
    """Return the names of attributes that Keras's code assigns on objects of ``cls``."""
    names = assigned_by(cls, library=True)
    if issubclass(cls, keras.Model):
        names |= frozenset(vars(keras.Model()))
    return names


@functools.cache
def assigned_by_user(cls: Any) -> frozenset[str]:
    """Return the names of attributes that the user's own methods of ``cls`` assign."""
    has_users_part = any(sorts.is_users_class(base) for base in cls.__mro__)
    return assigned_by(cls, library=False) if has_users_part else frozenset()


def _layers_of(obj: Any, fields: dict[str, Any]) -> list[Any]:
    """Return the value of ``layers`` of a model or layer, without running the property."""
    operations = fields.get("_operations")
    if operations is not None:
        return [
            op for op in operations if sorts.sort_of(op) in (sorts.Sort.LAYER, sorts.Sort.MODEL)
        ]
    layers = _items_of(fields["_layers"]) if "_layers" in fields else []
    is_sequential = keras.Sequential in type(obj).__mro__
    if is_sequential and layers and type(layers[0]) is keras.layers.InputLayer:
        return layers[1:]
    return layers


def _compiled(fields: dict[str, Any], path: ObjectPath) -> Iterator[Edge]:
    compile_path = path.attribute("compile")
    metrics = fields.get("_compile_metrics")
    loss = fields.get("_compile_loss")
    users = {} if metrics is None else sorts.fields_of(metrics)
    objects: list[tuple[ObjectPath, Any]] = [
        (path.attribute("optimizer"), fields.get(keras_names.OPTIMIZER)),
        (compile_path.argument("loss"), fields.get("loss")),
        (compile_path.argument("metrics"), users.get("_user_metrics")),
        (compile_path.argument("weighted_metrics"), users.get("_user_weighted_metrics")),
    ]
    for index, metric in enumerate(() if metrics is None else metrics.metrics):
        objects.append((path.attribute("metrics").item(index, metric.name), metric))
    for index, loss_item in enumerate(getattr(loss, "_flat_losses", None) or ()):
        objects.append(
            (compile_path.argument("loss").item(index), getattr(loss_item, "loss", loss_item))
        )
    objects.append((path.attribute("loss_tracker"), fields.get("_loss_tracker")))
    yield from (Edge(where, obj, How.COMPILED) for where, obj in objects if obj is not None)


def _items_of(obj: Any) -> list[Any]:
    """Return the items of a list, a tuple, a deque or an array, without running code of its class."""
    if isinstance(obj, np.ndarray):
        return list(obj.flat) if obj.dtype == object else []
    kind: Any = next(base for base in (list, tuple, deque) if base in type(obj).__mro__)
    wrapped = sorts.list_in_wrapper(obj)
    return _taken(kind.__iter__(obj if wrapped is None else wrapped))


def _taken(items: Iterable[Any]) -> list[Any]:
    try:
        return list(itertools.islice(items, MOST))
    except RuntimeError:
        # Another thread changed the container.
        return []


def _of_object(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    for name, value in list(sorts.fields_of(obj).items()):
        # TensorFlow's tracking attributes hold the same objects as the user's attributes.
        if not name.startswith("_self_"):
            yield Edge(path.attribute(name), value, How.FIELD, name)


def _of_list(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    for index, item in enumerate(_items_of(obj)):
        if type(item) not in sorts.PLAIN_TYPES:
            yield Edge(path.item(index, sorts.label_of(item, sorts.sort_of(item))), item)


def _of_dict(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    bases = (types.MappingProxyType, weakref.WeakValueDictionary, dict)
    kind: Any = next(base for base in bases if base in type(obj).__mro__)
    for key, value in _taken(kind.items(obj)):
        if type(value) not in sorts.PLAIN_TYPES:
            yield Edge(path.item(key, sorts.label_of(value, sorts.sort_of(value))), value)
        if type(key) not in sorts.PLAIN_TYPES:
            yield Edge(path.noted("a key"), key)


def _of_set(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    kind = next(base for base in (set, frozenset, weakref.WeakSet) if base in type(obj).__mro__)
    for item in _taken(kind.__iter__(obj)):
        if type(item) not in sorts.PLAIN_TYPES:
            yield Edge(path.noted("an element"), item)


def _of_function(function: Any, path: ObjectPath) -> Iterator[Edge]:
    """Yield the closure's cells, the defaults, and the attributes of a user's function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        yield Edge(path.noted(f"closure variable {name!r}"), cell, How.USED)
    for name, value in named_defaults(function).items():
        yield Edge(path.noted(f"default argument {name!r}"), value, How.USED)
    if sorts.is_users_module(function.__module__ or ""):
        for name, value in list(function.__dict__.items()):
            yield Edge(path.attribute(name), value, How.USED)


class UsedVariable(NamedTuple):
    """A name among the variables of a module that a function uses; ``alias`` is another module's name there."""

    variables: dict[str, Any]
    name: str
    alias: str = ""


def variables_used(function: Any) -> list[UsedVariable]:
    """Return the variables of the user's modules that a user's function uses."""
    if not sorts.is_users_module(function.__module__ or ""):
        return []
    namespace = function.__globals__
    names = names_in(function)
    modules = {name: sys.modules.get(name) for name in sorted(imported_modules(function))}
    variables = []
    for name, value in globals_of(function):
        if isinstance(value, types.ModuleType):
            modules[name] = value
        else:
            variables.append(UsedVariable(namespace, name))
    for alias, other in modules.items():
        if other is not None and sorts.is_users_module(other.__name__):
            variables += [
                UsedVariable(vars(other), name, alias) for name in vars(other) if name in names
            ]
    return variables + [UsedVariable(namespace, name) for name in sorted(stored_globals(function))]


def _of_cell(cell: Any, path: ObjectPath) -> Iterator[Edge]:
    with contextlib.suppress(ValueError):  # the variable is not assigned yet
        yield Edge(path, cell.cell_contents)


def _of_method(method: Any, path: ObjectPath) -> Iterator[Edge]:
    yield Edge(path, method.__func__)
    yield Edge(path.owner(type(method.__self__).__name__), method.__self__)


def _of_partial(partial: Any, path: ObjectPath) -> Iterator[Edge]:
    yield Edge(path, partial.func)
    for key, value in (*enumerate(partial.args), *partial.keywords.items()):
        yield Edge(path.given(repr(key)), value)


def cached_values(cache: Any) -> list[Any]:
    """Return the values in a cache of `functools`."""
    values: list[Any] = []
    for referent in gc.get_referents(cache):
        if type(referent) is not dict:
            # A bounded cache refers to its keys and results directly.
            values.append(referent)
        elif referent is not sorts.fields_of(cache):
            values += (
                value for value in referent.values() if "lru_list" not in type(value).__name__
            )
    return values


def _of_cache(cache: Any, path: ObjectPath) -> Iterator[Edge]:
    yield Edge(path, cache.__wrapped__)
    yield from (Edge(path.noted("cache"), value) for value in cached_values(cache))


def _of_wrapped(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    with contextlib.suppress(AttributeError):  # it wraps nothing
        yield Edge(path, object.__getattribute__(obj, "__wrapped__"))


def _of_descriptor(obj: Any, path: ObjectPath) -> Iterator[Edge]:
    for name in ("__func__", "fget", "fset", "func"):
        part = getattr(obj, name, None)
        if part is not None:
            yield Edge(path, part)


def frame_of(obj: Any) -> Any:
    """Return the frame of a running generator or coroutine; None for other objects."""
    return next((getattr(obj, _FRAMED[kind]) for kind in _FRAMED if isinstance(obj, kind)), None)


def _of_iterator(iterator: Any, path: ObjectPath) -> Iterator[Edge]:
    frame = frame_of(iterator)
    if frame is not None:
        for name, value in list(frame.f_locals.items()):
            yield Edge(path.noted(f"closure variable {name!r}"), value)
    elif sorts.is_users_class(type(iterator)):
        yield from _of_object(iterator, path)
    else:
        yield from (Edge(path, value) for value in gc.get_referents(iterator))


_FRAMED = {
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}


def _of_seeds(generator: Any, path: ObjectPath) -> Iterator[Edge]:
    fields = sorts.fields_of(generator)
    for name in ("state", "_state_var"):
        if name in fields:
            yield Edge(path.attribute("state"), fields[name])


def _of_tfdata(dataset: Any, path: ObjectPath) -> Iterator[Edge]:
    for name, value in list(sorts.fields_of(dataset).items()):
        if type(value).__name__ == "StructuredFunctionWrapper":
            function = path.attribute(f"{type(dataset).__name__.strip('_')} function")
            yield Edge(function, sorts.fields_of(value).get("_func"))
        elif name == "_datasets" and sorts.sort_of(value) is sorts.Sort.LIST:
            yield from (Edge(path, input_dataset) for input_dataset in _items_of(value))
        elif sorts.sort_of(value) is sorts.Sort.TFDATA or "input_dataset" in name:
            yield Edge(path, value)


_OTHERS: dict[sorts.Sort, Callable[[Any, ObjectPath], Iterator[Edge]]] = {
    sorts.Sort.ARRAY: _of_list,
    sorts.Sort.CACHE: _of_cache,
    sorts.Sort.CELL: _of_cell,
    sorts.Sort.CONTEXT: lambda variable, path: iter([Edge(path, variable.get(None))]),
    sorts.Sort.DESCRIPTOR: _of_descriptor,
    sorts.Sort.DICT: _of_dict,
    sorts.Sort.FUNCTION: _of_function,
    sorts.Sort.ITERATOR: _of_iterator,
    sorts.Sort.LIST: _of_list,
    sorts.Sort.METHOD: _of_method,
    sorts.Sort.OBJECT: _of_object,
    sorts.Sort.PARTIAL: _of_partial,
    sorts.Sort.SEEDS: _of_seeds,
    sorts.Sort.SET: _of_set,
    sorts.Sort.TFDATA: _of_tfdata,
    sorts.Sort.WEAK: lambda ref, path: iter([Edge(path, weakref.ReferenceType.__call__(ref))]),
    sorts.Sort.WRAPPED: _of_wrapped,
}
