"""What containers lead to: their items, and for one of a class of the user's its attributes."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import module_of
from sweeper.training.userstate.holders.objects import Attributes, DictItems, ListItems, SetItems
from sweeper.training.userstate.traversal.functions import users_classes
from sweeper.training.userstate.traversal.reached import Edge, Reached


def reach_list(thing: Any, path: ObjectPath) -> Reached:
    holder = ListItems(thing, path.text)
    return _container(holder, type(thing) in (list, deque), path)


def reach_tuple(thing: Any, path: ObjectPath) -> Reached:
    edges = tuple(Edge(path.item(i), v) for i, v in enumerate(tuple.__iter__(thing)))
    return Reached(None, edges, named=False)


def reach_dict(thing: Any, path: ObjectPath) -> Reached:
    if isinstance(thing, types.MappingProxyType):
        return Reached(None, tuple(Edge(path.item(k), v) for k, v in thing.items()))
    if not isinstance(thing, dict):
        return Reached()
    return _container(DictItems(thing, path.text), type(thing) is dict, path)


def reach_set(thing: Any, path: ObjectPath) -> Reached:
    if isinstance(thing, frozenset):
        edges = tuple(Edge(path.noted("an element"), v) for v in frozenset.__iter__(thing))
        return Reached(None, edges, named=False)
    return _container(SetItems(thing, path.text), type(thing) is set, path)


def _container(holder: Any, exact: bool, path: ObjectPath) -> Reached:
    """A container; one of a class of the user's has attributes and code beside its items."""
    _, values = holder.read()
    keys = holder.read()[0]
    follow = any(not is_plain_type(cls) for cls in {*map(type, values), *map(type, keys)})
    edges: list[Edge] = []
    thing = holder.thing
    if not exact and getattr(thing, "__dict__", None) is not None and "keras" not in _root(thing):
        edges.append(Edge(path.noted("the attributes"), OwnAttributes(thing)))
        edges += users_classes(type(thing), path)
    return Reached(holder, tuple(edges), follow=follow)


def is_plain_type(cls: type) -> bool:
    """Whether values of ``cls`` are leaves."""
    return cls in _PLAIN_TYPES


_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})


def _root(thing: object) -> str:
    return module_of(type(thing)).partition(".")[0]


class OwnAttributes:
    """Stands for the attributes of a container, whose items are a holder of their own."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner


def reach_own_attributes(thing: Any, path: ObjectPath) -> Reached:
    return Reached(Attributes(thing.owner, path.text))
