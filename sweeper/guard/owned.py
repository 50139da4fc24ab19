"""Walk over the objects of a trial, with a path to each, and the names of their other holders.

The factories and the user's modules are searched breadth first, so that the shortest name is found.
Objects that cannot be reached from them (an attribute of an installed library, a variable of
another thread) have no name.

`inspection.walk` defines the edges. The guard also follows weak references and methods of the
user's classes, and arguments of `compile` only for the trained model.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras

from sweeper.inspection.sorts import (
    OF_KERAS,
    Sort,
    fields_of,
    is_users_class,
    is_users_module,
    sort_of,
)
from sweeper.inspection.walk import (
    MODULE_ATTRIBUTE,
    Edge,
    How,
    ObjectPath,
    edges_of,
    variables_used,
    walk,
)

_MOST_ITEMS = 20_000
"""Items of a container that are visited; a longer container is data."""

_NEVER = frozenset({Sort.LEAF, Sort.CELL})


class Visit(NamedTuple):
    """One visited object.

    Attributes:
        parent: Index of the parent's visit; -1 for a root.
        by_code: Whether the path goes through a function that uses the object.
    """

    obj: Any
    sort: Sort
    path: ObjectPath
    parent: int
    by_code: bool


def visits_from(
    roots: Iterable[tuple[ObjectPath, Any]], *, trained: Any = None
) -> tuple[list[Visit], bool]:
    """Visit everything reachable from the roots, depth first; return the visits, and whether the walk was cut.

    Each object is visited once, before its parts, and named by the first root. Only of the ``trained`` model
    optimizer, loss and metrics count: those of a model inside it are not used in training.
    """
    visits: list[Visit] = []

    def visit(edge: Edge, parent: int) -> Iterable[Edge] | None:
        sort = sort_of(edge.obj)
        if sort in _NEVER:
            return None
        by_code = edge.how is How.USED or (parent >= 0 and visits[parent].by_code)
        visits.append(Visit(edge.obj, sort, edge.path, parent, by_code))
        return parts_of(edge.obj, sort, edge.path, compiled=edge.obj is trained)

    cut = walk([Edge(path, obj) for path, obj in roots], visit)
    return visits, cut


def parts_of(obj: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Edge]:
    """Yield the edges of ``obj``, with the arguments of a model's `compile` if ``compiled``.

    Objects that code uses have `How.USED`.
    """
    edges = itertools.islice(edges_of(obj, sort, path), _MOST_ITEMS)
    held = _ordered(obj, edges) if sort in OF_KERAS else list(edges)
    for edge in held:
        # The loss is what the model was compiled with.
        is_loss = sort is Sort.MODEL and edge.name == "loss"
        if edge.how is not How.COMPILED and not is_loss:
            yield from _opened(edge)
    yield from _of_code(obj, sort, path)
    if compiled:
        yield from (edge for edge in held if edge.how is How.COMPILED)


def _of_code(obj: Any, sort: Sort, path: ObjectPath) -> Iterator[Edge]:
    """Yield the objects that a function, or the methods of an object or class, may use."""
    if sort in OF_KERAS or sort in (Sort.OBJECT, Sort.ITERATOR):
        yield from _of_classes(type(obj), path)
    elif sort is Sort.FUNCTION:
        yield from _of_variables(obj, path)
    elif sort is Sort.CLASS and is_users_class(obj):
        for name, member in _members(obj):
            if not name.startswith("__"):
                yield _member(path.of_class().attribute(name), member)


def _opened(edge: Edge) -> Iterator[Edge]:
    """Yield the edge, or the content of the cell to which it leads."""
    if sort_of(edge.obj) is not Sort.CELL:
        yield edge
        return
    for inside in edges_of(edge.obj, Sort.CELL, edge.path):
        yield inside._replace(how=edge.how)


def _ordered(obj: Any, edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges, those with the most familiar names first."""
    order = [How.LISTED, How.FIELD, How.LAYER]
    if is_users_class(type(obj)):
        # In a layer of the user's own, the attribute's name is what the user knows.
        order = [How.FIELD, How.LISTED, How.LAYER]
    if keras.Sequential in type(obj).__mro__ or "_operations" in fields_of(obj):
        order = [How.LAYER, *order[:2]]
    order.append(How.COMPILED)
    return sorted(edges, key=lambda edge: order.index(edge.how))


def _of_classes(cls: type, path: ObjectPath) -> Iterator[Edge]:
    """Yield class attributes and methods of the user's classes."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if is_users_class(base):
            for name, member in _members(base):
                dunder = name.startswith("__") and name not in ("__call__", "__getitem__")
                if not dunder and sort_of(member) is not Sort.CLASS:
                    yield _member(path.attribute(name), member)


def _members(cls: type) -> list[tuple[str, Any]]:
    members = list(type.__dict__["__dict__"].__get__(cls).items())
    return [(name, member) for name, member in members if sort_of(member) is not Sort.LEAF]


def _member(path: ObjectPath, member: Any) -> Edge:
    is_code = sort_of(member) in (Sort.FUNCTION, Sort.DESCRIPTOR)
    return Edge(path, member, How.USED if is_code else How.HELD)


def _of_variables(function: Any, path: ObjectPath) -> Iterator[Edge]:
    """Yield the variables of the user's modules that a function uses."""
    for used in variables_used(function):
        value = used.variables.get(used.name)
        if used.alias:
            yield Edge(ObjectPath(f"{used.alias}.{used.name}"), value, How.USED)
        elif sort_of(value) is not Sort.CLASS:
            yield Edge(path.noted(f"global variable {used.name!r}"), value, How.USED)


_MOST = 300_000


def holders_of(
    wanted: Iterable[object], factories: Iterable[Callable[..., Any]]
) -> Mapping[int, str]:
    """Return the path of each wanted object in the factories and the user's modules, by id."""
    missing = {id(obj) for obj in wanted}
    found: dict[int, str] = {}
    factories = list(factories)

    def visit(edge: Edge, _: int) -> Iterable[Edge] | None:
        if id(edge.obj) in missing:
            missing.discard(id(edge.obj))
            found[id(edge.obj)] = edge.path.text
        sort = sort_of(edge.obj)
        if not missing or sort in (Sort.LEAF, Sort.MODULE):
            return None
        return parts_of(edge.obj, sort, edge.path, compiled=True)

    walk(_roots(factories), visit, most=_MOST, breadth=True)
    return found


def _roots(factories: list[Callable[..., Any]]) -> Iterator[Edge]:
    """Yield the factories, then the variables of the user's modules."""
    for factory in factories:
        yield Edge(ObjectPath(name_of(factory)), factory)
    for module_name, module in sorted(sys.modules.items(), key=lambda each: each[0] == "__main__"):
        users = module_name == "__main__" or is_users_module(module_name)
        if users and type(module) is types.ModuleType:
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    yield Edge(ObjectPath(f"{MODULE_ATTRIBUTE}{module.__name__}.{name}"), value)


def name_of(factory: Any) -> str:
    """Return the user's name of a factory."""
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]
