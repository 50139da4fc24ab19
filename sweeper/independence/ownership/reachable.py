"""Everything that an object leads to, each once, with a path to it in the user's terms.

The walk keeps a stack of its own, so depth is no limit; it remembers what it has seen by identity,
so cycles end; and it stops after `MOST` objects, and says that it did. What an object leads to
directly is for `sweeper.independence.ownership.parts` to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sweeper.independence.ownership.keras_parts import Part
from sweeper.independence.ownership.parts import parts_of
from sweeper.inspection.object_paths import ObjectPath
from sweeper.inspection.sorts import Sort, sort_of

MOST = 200_000
"""Objects that one walk looks at."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One object that a walk came to.

    Attributes:
        parent: Index of the visit that led here; -1 for a root.
        by_code: Whether the way here leads through code that uses something.
    """

    thing: Any
    sort: Sort
    path: ObjectPath
    parent: int
    by_code: bool


@dataclass(frozen=True, slots=True)
class Visited:
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
    stack = [(Part(path, thing), -1, False) for path, thing in roots]
    stack.reverse()
    while stack:
        part, parent, by_code = stack.pop()
        thing = part.thing
        if id(thing) in seen:
            continue
        sort = sort_of(thing)
        if sort is Sort.LEAF:
            continue
        if len(visits) >= MOST:
            return Visited(visits, cut=True)
        seen.add(id(thing))
        by_code = by_code or part.by_code
        index = len(visits)
        visits.append(Visit(thing, sort, part.path, parent, by_code))
        inside = [
            (each, index, by_code)
            for each in parts_of(thing, sort, part.path, compiled=thing is trained)
            if id(each.thing) not in seen
        ]
        inside.reverse()
        stack += inside
    return Visited(visits, cut=False)
