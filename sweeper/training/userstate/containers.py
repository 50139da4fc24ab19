"""What containers lead to: their items, and for one of a class of the user's its attributes."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from sweeper.inspection.places import Place
from sweeper.inspection.sorts import module_of
from sweeper.training.userstate.functions import users_classes
from sweeper.training.userstate.holders import Attributes, DictItems, ListItems, SetItems
from sweeper.training.userstate.reached import Edge, Reached

__all__ = [
    "OwnAttributes",
    "reach_dict",
    "reach_list",
    "reach_own_attributes",
    "reach_set",
    "reach_tuple",
]


def reach_list(thing: Any, place: Place) -> Reached:
    holder = ListItems(thing, place.text)
    return _container(holder, type(thing) in (list, deque), place)


def reach_tuple(thing: Any, place: Place) -> Reached:
    edges = tuple(Edge(place.item(i), v) for i, v in enumerate(tuple.__iter__(thing)))
    return Reached(None, edges, named=False)


def reach_dict(thing: Any, place: Place) -> Reached:
    if isinstance(thing, types.MappingProxyType):
        return Reached(None, tuple(Edge(place.item(k), v) for k, v in thing.items()))
    if not isinstance(thing, dict):
        return Reached()
    return _container(DictItems(thing, place.text), type(thing) is dict, place)


def reach_set(thing: Any, place: Place) -> Reached:
    if isinstance(thing, frozenset):
        edges = tuple(Edge(place.noted("an element"), v) for v in frozenset.__iter__(thing))
        return Reached(None, edges, named=False)
    return _container(SetItems(thing, place.text), type(thing) is set, place)


def _container(holder: Any, exact: bool, place: Place) -> Reached:
    """A container; one of a class of the user's has attributes and code beside its items."""
    _, values = holder.read()
    keys = holder.read()[0]
    follow = any(not is_plain_type(cls) for cls in {*map(type, values), *map(type, keys)})
    edges: list[Edge] = []
    thing = holder.thing
    if not exact and getattr(thing, "__dict__", None) is not None and "keras" not in _root(thing):
        edges.append(Edge(place.noted("the attributes"), OwnAttributes(thing)))
        edges += users_classes(type(thing), place)
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


def reach_own_attributes(thing: Any, place: Place) -> Reached:
    return Reached(Attributes(thing.owner, place.text))
