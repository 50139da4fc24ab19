"""What an object leads to directly, by Python's means: nothing of the user's is run for it.

Attributes, containers, closures, defaults, partials, bound methods, caches of `functools`, weak
references, class attributes, and the module variables that the user's functions load. ``__dict__``
and slots are read, so no property of the user's runs, and containers by their built-in classes'
iterators, so no method of the user's does.
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from sweeper.independence.ownership.keras_parts import (
    MOST_ITEMS,
    Part,
    items_of,
    of_classes,
    of_keras,
    of_model,
)
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


def parts_of(thing: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Part]:
    """What ``thing`` leads to directly; nothing of the user's is run.

    Args:
        thing: An object of ``sort``, at ``path``.
        sort: As `sort_of` tells.
        path: Where it is.
        compiled: For a model: whether what it was compiled with belongs to it.
    """
    if sort is Sort.MODEL:
        yield from of_model(thing, path, compiled=compiled)
    elif sort in OF_KERAS:
        yield from of_keras(thing, sort, path)
    else:
        more = _OTHERS.get(sort)
        if more is not None:
            for part in more(thing, path):
                if sort_of(part.thing) is not Sort.LEAF:
                    yield part


def _of_object(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for name, value in list(fields_of(thing).items()):
        # TensorFlow's notes of what it tracks say again what the user's own attributes say.
        if not name.startswith("_self_"):
            yield Part(path.attribute(name), value)
    yield from of_classes(type(thing), path)


def _of_class(cls: Any, path: ObjectPath) -> Iterator[Part]:
    if not is_users_class(cls):
        return
    for name, member in list(type.__dict__["__dict__"].__get__(cls).items()):
        if not name.startswith("__"):
            code = sort_of(member) in (Sort.FUNCTION, Sort.DESCRIPTOR)
            yield Part(path.of_class().attribute(name), member, by_code=code)


def _of_list(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for index, item in enumerate(items_of(thing)):
        sort = sort_of(item)
        if sort is not Sort.LEAF:
            yield Part(path.item(index, label_of(item, sort)), item)


def _of_dict(thing: Any, path: ObjectPath) -> Iterator[Part]:
    if weakref.WeakValueDictionary in type(thing).__mro__:
        items: Iterable[tuple[Any, Any]] = weakref.WeakValueDictionary.items(thing)
    elif type(thing) is types.MappingProxyType:
        items = thing.items()
    else:
        items = dict.items(thing)
    try:
        listed = list(itertools.islice(items, MOST_ITEMS))
    except RuntimeError:
        return
    for key, value in listed:
        yield Part(path.item(key, label_of(value, sort_of(value))), value)
        yield Part(path.noted("a key"), key)


def _of_set(thing: Any, path: ObjectPath) -> Iterator[Part]:
    kind = next(base for base in (set, frozenset, weakref.WeakSet) if base in type(thing).__mro__)
    try:
        items = list(itertools.islice(kind.__iter__(thing), MOST_ITEMS))
    except RuntimeError:
        return
    for item in items:
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
            sort = sort_of(value)
            if sort is Sort.MODULE:
                yield from _of_module(value, function.__code__.co_names, name)
            elif sort is not Sort.CLASS:
                yield Part(path.global_(name), value, by_code=True)


def _of_module(module: Any, names: Iterable[str], alias: str) -> Iterator[Part]:
    """Those variables of a user's module that the names of some code may mean."""
    if is_users_module(module.__name__):
        for name in names:
            if name in vars(module):
                yield Part(ObjectPath(f"{alias}.{name}"), vars(module)[name], by_code=True)


def _of_method(method: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, method.__func__)
    owner = method.__self__
    yield Part(path.owner(type(owner).__name__), owner)


def _of_partial(partial: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, partial.func)
    for index, value in enumerate(partial.args):
        yield Part(path.given(str(index)), value)
    for name, value in partial.keywords.items():
        yield Part(path.given(repr(name)), value)


def _of_cache(cache: Any, path: ObjectPath) -> Iterator[Part]:
    """What a `functools` cache has kept; the function that it wraps, too."""
    yield Part(path, cache.__wrapped__)
    kept = path.cache()
    for held in gc.get_referents(cache):
        if type(held) is not dict:
            yield Part(kept, held)
        elif held is not fields_of(cache):
            for value in held.values():
                yield Part(kept, value)


def _of_weak(reference: Any, path: ObjectPath) -> Iterator[Part]:
    target = weakref.ReferenceType.__call__(reference)
    if target is not None:
        yield Part(path, target)


def _of_context(variable: contextvars.ContextVar[Any], path: ObjectPath) -> Iterator[Part]:
    yield Part(path, variable.get(None))


def _of_wrapped(thing: Any, path: ObjectPath) -> Iterator[Part]:
    yield Part(path, object.__getattribute__(thing, "__wrapped__"))


def _of_descriptor(thing: Any, path: ObjectPath) -> Iterator[Part]:
    for name in ("__func__", "fget", "fset", "func"):
        function = getattr(thing, name, None)
        if function is not None:
            yield Part(path, function)


def _of_array(array: Any, path: ObjectPath) -> Iterator[Part]:
    if array.dtype == object and array.size <= MOST_ITEMS:
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
        if name in fields:
            yield Part(path.attribute("state"), fields[name])


def _of_tfdata(dataset: Any, path: ObjectPath) -> Iterator[Part]:
    for name, value in list(fields_of(dataset).items()):
        if type(value).__name__ == "StructuredFunctionWrapper":
            function = fields_of(value).get("_func")
            yield Part(path.attribute(f"{type(dataset).__name__.strip('_')} function"), function)
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
