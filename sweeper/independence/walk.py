"""The guard's walk: everything that a trial's parts lead to, in the order and by the names that users know.

What leads where is decided by `inspection.walk`. The guard also follows weak references and the methods of the
user's classes, and of what a model was compiled with only that of the model which is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras

from sweeper.inspection import walk as objects
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import OF_KERAS, Sort, fields_of, is_users_class, sort_of
from sweeper.inspection.walk import Edge, How, edges_of, variables_used

_MOST_ITEMS = 20_000
"""What a walk looks at of one object; a longer container is data."""

_NEVER = frozenset({Sort.LEAF, Sort.CELL})


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
    visits: list[Visit] = []

    def visit(edge: Edge, parent: int) -> Iterable[Edge] | None:
        sort = sort_of(edge.thing)
        if sort in _NEVER:
            return None
        above = visits[parent] if parent >= 0 else None
        by_code = edge.how is How.USED or (above is not None and above.by_code)
        root = edge.path.text if above is None else above.root
        visits.append(Visit(edge.thing, sort, edge.path, parent, by_code, root))
        return parts_of(edge.thing, sort, edge.path, compiled=edge.thing is trained)

    cut = objects.walk([Edge(path, thing) for path, thing in roots], visit)
    return Visited(visits, cut)


def parts_of(thing: Any, sort: Sort, path: ObjectPath, *, compiled: bool) -> Iterator[Edge]:
    """Yield what ``thing`` leads to directly; what code uses as `How.USED`.

    Args:
        thing: An object of ``sort``, at ``path``.
        sort: As `sort_of` tells.
        path: Where it is.
        compiled: For a model: whether what it was compiled with belongs to it.
    """
    edges = itertools.islice(edges_of(thing, sort, path), _MOST_ITEMS)
    held = _ordered(thing, edges) if sort in OF_KERAS else list(edges)
    for edge in held:
        # The loss is what the model was compiled with.
        is_loss = sort is Sort.MODEL and edge.name == "loss"
        if edge.how is not How.COMPILED and not is_loss:
            yield from _opened(edge)
    yield from _of_code(thing, sort, path)
    if compiled:
        yield from (edge for edge in held if edge.how is How.COMPILED)


def _of_code(thing: Any, sort: Sort, path: ObjectPath) -> Iterator[Edge]:
    """Yield what the methods of an object, a class, or a function may use."""
    if sort in OF_KERAS or sort in (Sort.OBJECT, Sort.ITERATOR):
        yield from _of_classes(type(thing), path)
    elif sort is Sort.FUNCTION:
        yield from _of_variables(thing, path)
    elif sort is Sort.CLASS and is_users_class(thing):
        for name, member in _members(thing):
            if not name.startswith("__"):
                yield _member(path.of_class().attribute(name), member)


def _opened(edge: Edge) -> Iterator[Edge]:
    """Yield the edge, or what is in the cell that it leads to."""
    if sort_of(edge.thing) is not Sort.CELL:
        yield edge
        return
    for inside in edges_of(edge.thing, Sort.CELL, edge.path):
        yield inside._replace(how=edge.how)


def _ordered(thing: Any, edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges with those first whose names the user knows best."""
    order = [How.LISTED, How.FIELD, How.LAYER]
    if is_users_class(type(thing)):
        # In a layer of the user's own, the attribute's name is what the user knows.
        order = [How.FIELD, How.LISTED, How.LAYER]
    if keras.Sequential in type(thing).__mro__ or "_operations" in fields_of(thing):
        order = [How.LAYER, *order[:2]]
    order.append(How.COMPILED)
    return sorted(edges, key=lambda edge: order.index(edge.how))


def _of_classes(cls: type, path: ObjectPath) -> Iterator[Edge]:
    """Yield class attributes and methods of the user's own classes."""
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
    """Yield the variables of modules of the user's that a function uses."""
    for used in variables_used(function):
        own = used.module if isinstance(used.module, dict) else vars(used.module)
        value = own.get(used.name)
        if used.alias:
            yield Edge(ObjectPath(f"{used.alias}.{used.name}"), value, How.USED)
        elif sort_of(value) is not Sort.CLASS:
            yield Edge(path.global_(used.name), value, How.USED)
