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

from sweeper.independence.keras_parts import (
    MOST_ITEMS,
    OF_KERAS,
    Part,
    items_of,
    of_classes,
    of_keras,
    of_model,
)
from sweeper.inspection.code import globals_of
from sweeper.inspection.places import Place
from sweeper.inspection.sorts import (
    Sort,
    fields_of,
    is_users_class,
    is_users_module,
    label_of,
    sort_of,
)

__all__ = ["Part", "parts_of"]


def parts_of(thing: Any, sort: Sort, place: Place, *, compiled: bool) -> Iterator[Part]:
    """What ``thing`` leads to directly; nothing of the user's is run.

    Args:
        thing: An object of ``sort``, at ``place``.
        sort: As `sort_of` tells.
        place: Where it is.
        compiled: For a model: whether what it was compiled with belongs to it.
    """
    if sort is Sort.MODEL:
        yield from of_model(thing, place, compiled=compiled)
    elif sort in OF_KERAS:
        yield from of_keras(thing, sort, place)
    else:
        more = _OTHERS.get(sort)
        if more is not None:
            for part in more(thing, place):
                if sort_of(part.thing) is not Sort.LEAF:
                    yield part


def _of_object(thing: Any, place: Place) -> Iterator[Part]:
    for name, value in list(fields_of(thing).items()):
        # TensorFlow's notes of what it tracks say again what the user's own attributes say.
        if not name.startswith("_self_"):
            yield Part(place.attribute(name), value)
    yield from of_classes(type(thing), place)


def _of_class(cls: Any, place: Place) -> Iterator[Part]:
    if not is_users_class(cls):
        return
    for name, member in list(type.__dict__["__dict__"].__get__(cls).items()):
        if not name.startswith("__"):
            code = sort_of(member) in (Sort.FUNCTION, Sort.DESCRIPTOR)
            yield Part(place.of_class().attribute(name), member, by_code=code)


def _of_list(thing: Any, place: Place) -> Iterator[Part]:
    for index, item in enumerate(items_of(thing)):
        sort = sort_of(item)
        if sort is not Sort.LEAF:
            yield Part(place.item(index, label_of(item, sort)), item)


def _of_dict(thing: Any, place: Place) -> Iterator[Part]:
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
        yield Part(place.item(key, label_of(value, sort_of(value))), value)
        yield Part(place.noted("a key"), key)


def _of_set(thing: Any, place: Place) -> Iterator[Part]:
    kind = next(base for base in (set, frozenset, weakref.WeakSet) if base in type(thing).__mro__)
    try:
        items = list(itertools.islice(kind.__iter__(thing), MOST_ITEMS))
    except RuntimeError:
        return
    for item in items:
        yield Part(place.noted("an element"), item)


def _of_function(function: Any, place: Place) -> Iterator[Part]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Part(place.closure(name), cell.cell_contents, by_code=True)
        except ValueError:
            continue
    arguments = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=False):
        yield Part(place.default(name), value, by_code=True)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield Part(place.default(name), value, by_code=True)
    if is_users_module(function.__module__ or ""):
        for name, value in list(function.__dict__.items()):
            yield Part(place.attribute(name), value, by_code=True)
        for name, value in globals_of(function):
            sort = sort_of(value)
            if sort is Sort.MODULE:
                yield from _of_module(value, code.co_names, name)
            elif sort is not Sort.CLASS:
                yield Part(place.global_(name), value, by_code=True)


def _of_module(module: Any, names: Iterable[str], alias: str) -> Iterator[Part]:
    """Those variables of a user's module that the names of some code may mean."""
    if is_users_module(module.__name__):
        for name in names:
            if name in vars(module):
                yield Part(Place(f"{alias}.{name}"), vars(module)[name], by_code=True)


def _of_method(method: Any, place: Place) -> Iterator[Part]:
    yield Part(place, method.__func__)
    owner = method.__self__
    yield Part(place.owner(type(owner).__name__), owner)


def _of_partial(partial: Any, place: Place) -> Iterator[Part]:
    yield Part(place, partial.func)
    for index, value in enumerate(partial.args):
        yield Part(place.given(str(index)), value)
    for name, value in partial.keywords.items():
        yield Part(place.given(repr(name)), value)


def _of_cache(cache: Any, place: Place) -> Iterator[Part]:
    """What a `functools` cache has kept; the function that it wraps, too."""
    yield Part(place, cache.__wrapped__)
    kept = place.cache()
    for held in gc.get_referents(cache):
        if type(held) is not dict:
            yield Part(kept, held)
        elif held is not fields_of(cache):
            for value in held.values():
                yield Part(kept, value)


def _of_weak(reference: Any, place: Place) -> Iterator[Part]:
    target = weakref.ReferenceType.__call__(reference)
    if target is not None:
        yield Part(place, target)


def _of_context(variable: contextvars.ContextVar[Any], place: Place) -> Iterator[Part]:
    yield Part(place, variable.get(None))


def _of_wrapped(thing: Any, place: Place) -> Iterator[Part]:
    yield Part(place, object.__getattribute__(thing, "__wrapped__"))


def _of_descriptor(thing: Any, place: Place) -> Iterator[Part]:
    for name in ("__func__", "fget", "fset", "func"):
        function = getattr(thing, name, None)
        if function is not None:
            yield Part(place, function)


def _of_array(array: Any, place: Place) -> Iterator[Part]:
    if array.dtype == object and array.size <= MOST_ITEMS:
        for index, item in enumerate(array.flat):
            yield Part(place.item(index), item)


def _of_iterator(iterator: Any, place: Place) -> Iterator[Part]:
    frame = getattr(iterator, "gi_frame", None) if type(iterator) is types.GeneratorType else None
    if frame is not None:
        for name, value in list(frame.f_locals.items()):
            yield Part(place.closure(name), value)
    elif is_users_class(type(iterator)):
        yield from _of_object(iterator, place)
    else:
        for value in gc.get_referents(iterator):
            yield Part(place, value)


def _of_seeds(generator: Any, place: Place) -> Iterator[Part]:
    fields = fields_of(generator)
    for name in ("state", "_state_var"):
        if name in fields:
            yield Part(place.attribute("state"), fields[name])


def _of_tfdata(dataset: Any, place: Place) -> Iterator[Part]:
    for name, value in list(fields_of(dataset).items()):
        if type(value).__name__ == "StructuredFunctionWrapper":
            function = fields_of(value).get("_func")
            yield Part(place.attribute(f"{type(dataset).__name__.strip('_')} function"), function)
        elif sort_of(value) is Sort.TFDATA or "input_dataset" in name or name == "_datasets":
            yield Part(place, value)


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
