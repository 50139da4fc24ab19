"""Walk from an object to everything that it leads to, each object once, with a path in the user's terms.

Nothing of the user's is run: attributes are read from ``__dict__`` and slots, and containers by the
iterators of their built-in classes. What Keras and TensorFlow make is listed by the names that their users
know. What Keras keeps about how layers are connected is left out: through it one layer leads to every model
that was ever made with it.

The walk has a stack of its own, so depth is no limit; it knows what it has seen by identity, so cycles end;
and it stops after `MOST` objects, and says that it did.
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras

from sweeper.inspection import keras_names
from sweeper.inspection.callables import closure_of, named_defaults
from sweeper.inspection.code import globals_of
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    is_users_class,
    is_users_module,
    label_of,
    sort_of,
)

MOST = 200_000
"""Objects that one walk looks at."""

_MOST_ITEMS = 20_000
"""Items of one container that a walk looks at; a longer one is data."""

_LEFT_OUT = {
    Sort.MODEL: frozenset().union(
        keras_names.COMPILED, keras_names.FUNCTIONS, {keras_names.OPTIMIZER, "history", "loss"}
    ),
    Sort.CALLBACK: keras_names.GIVEN_TO_CALLBACKS,
    Sort.OPTIMIZER: frozenset({"_trainable_variables", keras_names.VARIABLES}),
}
"""Attributes that are listed elsewhere, or are not the object's own, by sort."""

_NEVER = frozenset().union(
    keras_names.CONNECTIONS, keras_names.REBUILT, keras_names.LISTS, {keras_names.LAYERS}
)
"""Attributes that say how layers are connected, or list what is listed by name."""


class Part(NamedTuple):
    """What an object leads to directly.

    Attributes:
        path: Where it is.
        thing: It.
        by_code: Whether a function merely uses it; otherwise it is held.
    """

    path: ObjectPath
    thing: Any
    by_code: bool = False


class Visit(NamedTuple):
    """One object that a walk came to.

    Attributes:
        parent: Index of the visit that led here; -1 for a root.
        by_code: Whether the way here leads through code that uses something.
        root: Text of the root's path.
    """

    thing: Any
    sort: Sort
    path: ObjectPath
    parent: int
    by_code: bool
    root: str


class Visited(NamedTuple):
    """All visits, each before what is inside it; ``cut`` tells that there would be more."""

    visits: list[Visit]
    cut: bool


def walk(roots: Iterable[tuple[ObjectPath, Any]], *, trained: Any = None) -> Visited:
    """Visit everything that the roots lead to, each object once, in depth.

    Args:
        roots: Where to begin, in order: what two roots lead to is named by the first.
        trained: The model whose optimizer, loss and metrics count. Those of a model inside it do
            not: nothing trains by them.
    """
    seen: set[int] = set()
    visits: list[Visit] = []
    stack = [(Part(path, thing), -1, path.text) for path, thing in roots]
    stack.reverse()
    while stack:
        part, parent, root = stack.pop()
        thing, sort = part.thing, sort_of(part.thing)
        if id(thing) in seen or sort is Sort.LEAF:
            continue
        if len(visits) >= MOST:
            return Visited(visits, cut=True)
        seen.add(id(thing))
        index = len(visits)
        by_code = part.by_code or (parent >= 0 and visits[parent].by_code)
        visits.append(Visit(thing, sort, part.path, parent, by_code, root))
        inside = [
            (each, index, root)
            for each in parts_of(thing, sort, part.path, compiled=thing is trained)
            if id(each.thing) not in seen
        ]
        inside.reverse()
        stack += inside
    return Visited(visits, cut=False)


def parts_of(thing: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Part]:
    """Yield what ``thing`` leads to directly.

    Args:
        thing: An object of ``sort``, at ``path``.
        sort: As `sort_of` tells.
        path: Where it is.
        compiled: For a model: whether what it was compiled with belongs to it.
    """
    if sort is Sort.MODEL:
        yield from _of_model(thing, path, compiled=compiled)
    elif sort in OF_KERAS:
        yield from _of_keras(thing, sort, path)
    elif sort in _OTHERS:
        for part in _OTHERS[sort](thing, path):
            if sort_of(part.thing) is not Sort.LEAF:
                yield part


def _of_model(model: Any, path: ObjectPath, *, compiled: bool) -> Iterator[Part]:
    fields = fields_of(model)
    layers = _listed(_layers_of(model, fields), path)
    if keras.Sequential in type(model).__mro__ or "_operations" in fields:
        yield from layers
        yield from _of_keras(model, Sort.MODEL, path, layers=False)
    else:
        yield from _of_keras(model, Sort.MODEL, path)
        yield from layers
    if not compiled:
        return
    given = path.attribute("compile")
    metrics = fields.get("_compile_metrics")
    users = {} if metrics is None else fields_of(metrics)
    for where, thing in (
        (path.attribute("optimizer"), fields.get(keras_names.OPTIMIZER)),
        (given.argument("loss"), fields.get("loss")),
        (given.argument("metrics"), users.get("_user_metrics")),
        (given.argument("weighted_metrics"), users.get("_user_weighted_metrics")),
        (path.attribute("compile_metrics"), metrics),
        (path.attribute("compile_loss"), fields.get("_compile_loss")),
        (path.attribute("loss_tracker"), fields.get("_loss_tracker")),
    ):
        if sort_of(thing) is not Sort.LEAF:
            yield Part(where, thing)


def _layers_of(model: Any, fields: dict[str, Any]) -> list[Any]:
    """Return what ``model.layers`` lists, without asking the model."""
    operations = fields.get("_operations")
    if operations is not None:
        return [op for op in operations if sort_of(op) in (Sort.LAYER, Sort.MODEL)]
    layers = _items_of(fields["_layers"]) if "_layers" in fields else []
    is_sequential = keras.Sequential in type(model).__mro__
    if is_sequential and layers and type(layers[0]) is keras.layers.InputLayer:
        return layers[1:]
    return layers


def _listed(layers: Iterable[Any], path: ObjectPath) -> Iterator[Part]:
    listed = path.attribute("layers")
    for index, layer in enumerate(layers):
        yield Part(listed.item(index, label_of(layer, sort_of(layer))), layer)


def _of_keras(thing: Any, sort: Sort, path: ObjectPath, *, layers: bool = True) -> Iterator[Part]:
    fields = fields_of(thing)
    users = is_users_class(type(thing))
    # In a layer of the user's own, the attribute's name is what the user knows.
    last = users and sort in (Sort.LAYER, Sort.MODEL)
    if not last:
        yield from _in_lists(fields, sort, path)
    left_out = _LEFT_OUT.get(sort, frozenset())
    for name, value in list(fields.items()):
        if name in _NEVER or name in left_out or name.startswith(keras_names.TRACKING_PREFIXES):
            continue
        if sort_of(value) is not Sort.LEAF:
            yield Part(path.attribute(name if users else name.lstrip("_")), value)
    if last:
        yield from _in_lists(fields, sort, path)
    if layers and "_layers" in fields:
        yield from _listed(fields["_layers"], path)
    yield from _of_classes(type(thing), path)


def _in_lists(fields: dict[str, Any], sort: Sort, path: ObjectPath) -> Iterator[Part]:
    """Yield what Keras's own lists have, each by its name."""
    for name in (
        (keras_names.VARIABLES,) if sort in (Sort.OPTIMIZER, Sort.METRIC) else keras_names.LISTS
    ):
        if sort_of(fields.get(name)) is Sort.LIST:
            for value in _items_of(fields[name]):
                label = label_of(value, sort_of(value))
                yield Part(path.attribute(label or name.lstrip("_")), value)


def _of_classes(cls: type, path: ObjectPath) -> Iterator[Part]:
    """Yield class attributes and methods of the user's own classes."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if is_users_class(base):
            for name, member in _members(base):
                dunder = name.startswith("__") and name not in ("__call__", "__getitem__")
                if not dunder and sort_of(member) is not Sort.CLASS:
                    yield Part(path.attribute(name), member, _is_code(member))


def _members(cls: type) -> list[tuple[str, Any]]:
    members = list(type.__dict__["__dict__"].__get__(cls).items())
    return [(name, member) for name, member in members if sort_of(member) is not Sort.LEAF]


def _is_code(member: Any) -> bool:
    return sort_of(member) in (Sort.FUNCTION, Sort.DESCRIPTOR)


def _items_of(thing: Any) -> list[Any]:
    """Return the items of a list, a tuple or a deque, without a word from its class."""
    kind: Any = next(base for base in (list, tuple, deque) if base in type(thing).__mro__)
    # TensorFlow's wrapper of a list that is an attribute keeps the items beside itself.
    stored = fields_of(thing).get("_storage") if type(thing).__name__ == "ListWrapper" else None
    return _taken(kind.__iter__(thing if stored is None else stored))


def _taken(items: Iterable[Any]) -> list[Any]:
    try:
        return list(itertools.islice(items, _MOST_ITEMS))
    except RuntimeError:
        # Another thread changes the container.
        return []


def _of_object(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for name, value in list(fields_of(thing).items()):
        # TensorFlow's notes of what it tracks say again what the user's own attributes say.
        if not name.startswith("_self_"):
            yield Part(path.attribute(name), value)
    yield from _of_classes(type(thing), path)


def _of_class(cls: Any, path: ObjectPath) -> Iterator[Part]:
    if is_users_class(cls):
        for name, member in _members(cls):
            if not name.startswith("__"):
                yield Part(path.of_class().attribute(name), member, _is_code(member))


def _of_list(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for index, item in enumerate(_items_of(thing)):
        if sort_of(item) is not Sort.LEAF:
            yield Part(path.item(index, label_of(item, sort_of(item))), item)


def _of_dict(thing: Any, path: ObjectPath) -> Iterator[Part]:
    if weakref.WeakValueDictionary in type(thing).__mro__:
        items: Iterable[tuple[Any, Any]] = weakref.WeakValueDictionary.items(thing)
    elif type(thing) is types.MappingProxyType:
        items = thing.items()
    else:
        items = dict.items(thing)
    for key, value in _taken(items):
        yield Part(path.item(key, label_of(value, sort_of(value))), value)
        yield Part(path.noted("a key"), key)


def _of_set(thing: Any, path: ObjectPath) -> Iterator[Part]:
    kind = next(base for base in (set, frozenset, weakref.WeakSet) if base in type(thing).__mro__)
    for item in _taken(kind.__iter__(thing)):
        yield Part(path.noted("an element"), item)


def _of_function(function: Any, path: ObjectPath) -> Iterator[Part]:
    for name, value in closure_of(function):
        yield Part(path.closure(name), value, by_code=True)
    for name, value in named_defaults(function).items():
        yield Part(path.default(name), value, by_code=True)
    if is_users_module(function.__module__ or ""):
        for name, value in list(function.__dict__.items()):
            yield Part(path.attribute(name), value, by_code=True)
        for name, value in globals_of(function):
            if sort_of(value) is Sort.MODULE:
                yield from _of_module(value, function.__code__.co_names, name)
            elif sort_of(value) is not Sort.CLASS:
                yield Part(path.global_(name), value, by_code=True)


def _of_module(module: Any, names: Iterable[str], alias: str) -> Iterator[Part]:
    """Yield those variables of a user's module that the names of some code may mean."""
    if is_users_module(module.__name__):
        for name in names:
            if name in vars(module):
                yield Part(ObjectPath(f"{alias}.{name}"), vars(module)[name], by_code=True)


def _of_method(method: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, method.__func__)
    yield Part(path.owner(type(method.__self__).__name__), method.__self__)


def _of_partial(partial: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, partial.func)
    for key, value in (*enumerate(partial.args), *partial.keywords.items()):
        yield Part(path.given(repr(key)), value)


def _of_cache(cache: Any, path: ObjectPath) -> Iterator[Part]:
    """Yield what a `functools` cache has kept, and the function that it wraps."""
    yield Part(path, cache.__wrapped__)
    for held in gc.get_referents(cache):
        if held is not fields_of(cache):
            for value in held.values() if type(held) is dict else (held,):
                yield Part(path.cache(), value)


def _of_weak(reference: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, weakref.ReferenceType.__call__(reference))


def _of_context(variable: contextvars.ContextVar[Any], path: ObjectPath) -> Iterator[Part]:
    yield Part(path, variable.get(None))


def _of_wrapped(thing: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, object.__getattribute__(thing, "__wrapped__"))


def _of_descriptor(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for name in ("__func__", "fget", "fset", "func"):
        yield Part(path, getattr(thing, name, None))


def _of_array(array: Any, path: ObjectPath) -> Iterator[Part]:
    if array.dtype == object and array.size <= _MOST_ITEMS:
        for index, item in enumerate(array.flat):
            yield Part(path.item(index), item)


def _of_iterator(iterator: Any, path: ObjectPath) -> Iterator[Part]:
    frame = getattr(iterator, "gi_frame", None) if type(iterator) is types.GeneratorType else None
    if frame is not None:
        for name, value in list(frame.f_locals.items()):
            yield Part(path.closure(name), value)
    elif is_users_class(type(iterator)):
        yield from _of_object(iterator, path)
    else:
        for value in gc.get_referents(iterator):
            yield Part(path, value)


def _of_seeds(generator: Any, path: ObjectPath) -> Iterator[Part]:
    fields = fields_of(generator)
    for name in ("state", "_state_var"):
        yield Part(path.attribute("state"), fields.get(name))


def _of_tfdata(dataset: Any, path: ObjectPath) -> Iterator[Part]:
    for name, value in list(fields_of(dataset).items()):
        if type(value).__name__ == "StructuredFunctionWrapper":
            function = path.attribute(f"{type(dataset).__name__.strip('_')} function")
            yield Part(function, fields_of(value).get("_func"))
        elif sort_of(value) is Sort.TFDATA or "input_dataset" in name or name == "_datasets":
            yield Part(path, value)


_OTHERS = {
    Sort.ARRAY: _of_array,
    Sort.CACHE: _of_cache,
    Sort.CLASS: _of_class,
    Sort.CONTEXT: _of_context,
    Sort.DESCRIPTOR: _of_descriptor,
    Sort.DICT: _of_dict,
    Sort.FUNCTION: _of_function,
    Sort.ITERATOR: _of_iterator,
    Sort.LIST: _of_list,
    Sort.METHOD: _of_method,
    Sort.OBJECT: _of_object,
    Sort.PARTIAL: _of_partial,
    Sort.SEEDS: _of_seeds,
    Sort.SET: _of_set,
    Sort.TFDATA: _of_tfdata,
    Sort.WEAK: _of_weak,
    Sort.WRAPPED: _of_wrapped,
}
