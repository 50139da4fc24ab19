"""Names of what else holds an object, searched only where something is refused.

The factories and the user's modules are searched in breadth, so that the shortest name is found. An
object that they do not lead to (an attribute of an installed library, a variable of another thread)
has none.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sweeper.independence.walk import parts_of
from sweeper.inspection.object_paths import MODULE_ATTRIBUTE, ObjectPath
from sweeper.inspection.sorts import Sort, is_users_module, sort_of
from sweeper.inspection.walk import Edge, walk

_MOST = 300_000


def holders_of(
    wanted: Iterable[object], factories: Iterable[Callable[..., Any]]
) -> Mapping[int, str]:
    """Return where the factories and the user's modules have each of the objects, by id.

    Args:
        wanted: The objects.
        factories: The study's.
    """
    missing = {id(thing) for thing in wanted}
    found: dict[int, str] = {}
    factories = list(factories)

    def visit(edge: Edge, _: int) -> Iterable[Edge] | None:
        if id(edge.thing) in missing:
            missing.discard(id(edge.thing))
            found[id(edge.thing)] = edge.path.text
        sort = sort_of(edge.thing)
        if not missing or sort in (Sort.LEAF, Sort.MODULE):
            return None
        return parts_of(edge.thing, sort, edge.path, compiled=True)

    walk(_roots(factories), visit, most=_MOST, breadth=True)
    return found


def _roots(factories: list[Callable[..., Any]]) -> Iterator[Edge]:
    """Yield the factories, then the variables of every module of the user's."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if type(module) is types.ModuleType and is_users_module(name) and name != "__main__"
    ]
    main = sys.modules.get("__main__")
    if type(main) is types.ModuleType:
        modules.append(main)
    for factory in factories:
        yield Edge(ObjectPath(name_of(factory)), factory)
    for module in modules:
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                label = module.__name__
                yield Edge(ObjectPath(f"{MODULE_ATTRIBUTE}{label}.{name}"), value)


def name_of(factory: Any) -> str:
    """Return what the user calls a factory."""
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]
