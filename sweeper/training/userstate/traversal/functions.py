"""What functions, methods and classes lead to: closures, defaults, and the names that code uses."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from sweeper.inspection.callables import named_defaults
from sweeper.inspection.code import globals_of, imported_modules, names_in, stored_globals
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import is_users_class, is_users_module, module_of
from sweeper.training.userstate.holders.bindings import Cell, ClassAttributes
from sweeper.training.userstate.holders.objects import Attributes
from sweeper.training.userstate.holders.positions import Cache, cached_values
from sweeper.training.userstate.traversal.reached import Edge, Reached, edges_to


def users_classes(cls: type, path: ObjectPath) -> Iterator[Edge]:
    del path
    for base in type.__dict__["__mro__"].__get__(cls):
        if is_users_class(base):
            yield Edge(_path_of_class(base), base)


def _path_of_class(cls: type) -> ObjectPath:
    return ObjectPath(f"class {module_of(cls)}.{cls.__qualname__}")


def reach_class(thing: Any, path: ObjectPath) -> Reached:
    del path
    if not is_users_class(thing):
        return Reached()
    own = _path_of_class(thing)
    holder = ClassAttributes(thing, own.text)
    hidden = type.__dict__["__dict__"].__get__(thing)
    edges = [
        Edge(own.attribute(name), hidden[name])
        for name in ("__call__", "__getitem__", "__iter__", "__next__", "__init__", "__len__")
        if name in hidden
    ]
    return Reached(
        holder, (*edges, *(e for e in users_classes(thing, own) if e.thing is not thing))
    )


def reach_function(thing: Any, path: ObjectPath) -> Reached:
    code = thing.__code__
    users = is_users_module(thing.__module__ or "")
    shown = ObjectPath(f"{thing.__module__}.{thing.__qualname__}") if users else path
    edges = [
        Edge(shown.closure(name), cell)
        for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=False)
    ]
    edges += [Edge(shown.default(name), value) for name, value in named_defaults(thing).items()]
    variables: list[tuple[Any, str]] = []
    holder = None
    if users:
        variables = _globals(thing)
        if thing.__dict__:
            edges += [Edge(shown.attribute(n), v) for n, v in thing.__dict__.items()]
        holder = Attributes(thing, path.text)
    elif getattr(thing, "__wrapped__", None) is not None:
        edges.append(Edge(path, thing.__wrapped__))
    return Reached(holder, tuple(edges), tuple(variables), follow=False)


def _globals(function: Any) -> list[tuple[Any, str]]:
    """The module variables that a function of the user's loads or stores, here and in helpers."""
    namespace = function.__globals__
    found: list[tuple[Any, str]] = []
    own = sys.modules.get(namespace.get("__name__", ""))
    module = own if own is not None and vars(own) is namespace else namespace
    names = names_in(function)
    modules = [sys.modules.get(name) for name in sorted(imported_modules(function))]
    for name, value in globals_of(function):
        if isinstance(value, types.ModuleType):
            modules.append(value)
        else:
            found.append((module, name))
    for helper in modules:
        if helper is not None and is_users_module(helper.__name__):
            found += [(helper, name) for name in vars(helper) if name in names]
    return found + [(module, name) for name in sorted(stored_globals(function))]


def reach_cell(thing: Any, path: ObjectPath) -> Reached:
    holder = Cell(thing, path.text)
    try:
        inside = edges_to(path, thing.cell_contents)
    except ValueError:
        inside = ()
    return Reached(holder, inside, follow=False)


def reach_method(thing: Any, path: ObjectPath) -> Reached:
    owner = thing.__self__
    shown = path.owner(type(owner).__name__)
    return Reached(None, (Edge(shown, owner), Edge(path, thing.__func__)), named=False)


def reach_partial(thing: Any, path: ObjectPath) -> Reached:
    edges = [Edge(path, thing.func)]
    edges += [Edge(path.given(str(i)), value) for i, value in enumerate(thing.args)]
    edges += [Edge(path.given(repr(n)), value) for n, value in thing.keywords.items()]
    return Reached(None, tuple(edges))


def reach_cache(thing: Any, path: ObjectPath) -> Reached:
    kept = path.cache()
    edges = [Edge(path, thing.__wrapped__), *(Edge(kept, v) for v in cached_values(thing))]
    return Reached(Cache(thing, path.text), tuple(edges))


def reach_wrapped(thing: Any, path: ObjectPath) -> Reached:
    try:
        inner = object.__getattribute__(thing, "__wrapped__")
    except AttributeError:
        # Of the library of wrappers, and none.
        return Reached()
    return Reached(None, (Edge(path, inner),))


def reach_descriptor(thing: Any, path: ObjectPath) -> Reached:
    parts = (getattr(thing, name, None) for name in ("__func__", "fget", "fset", "func"))
    return Reached(None, edges_to(path, *(part for part in parts if part is not None)))
