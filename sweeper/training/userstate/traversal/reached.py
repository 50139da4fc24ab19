"""What the walk over the user's objects finds at each of them: a holder of state, and ways on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sweeper.inspection.object_paths import ObjectPath
from sweeper.training.userstate.holders.objects import Holder


class Edge(NamedTuple):
    """A way to an object."""

    path: ObjectPath
    thing: Any


@dataclass(slots=True)
class Reached:
    """What an object is to the walk.

    Attributes:
        holder: Holds its state; None where it has none, or none of its own.
        edges: What it leads to, beside the holder's contents.
        variables: Variables of modules that its code uses: the module (or its dict) and the name.
        follow: Whether the holder's contents are walked as well.
        named: Whether it can be referred to by its path.
    """

    holder: Holder | None = None
    edges: tuple[Edge, ...] = ()
    variables: tuple[tuple[Any, str], ...] = ()
    follow: bool = True
    named: bool = True


Reacher = Callable[[Any, ObjectPath], Reached]


def edges_to(path: ObjectPath, *things: Any) -> tuple[Edge, ...]:
    """A way to each of ``things``, all called by the same path."""
    return tuple(Edge(path, thing) for thing in things)
