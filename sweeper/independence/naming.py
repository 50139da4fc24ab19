"""Names of what else holds an object, searched only where something is refused.

The factories and the user's modules are searched in breadth, so that the shortest name is found. An
object that they do not lead to (an attribute of an installed library, a variable of another thread)
has none.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sweeper.independence.walk import parts_of
from sweeper.inspection.object_paths import MODULE_ATTRIBUTE, ObjectPath
from sweeper.inspection.sorts import Sort, is_users_module, sort_of

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
    seen: set[int] = set()
    waiting: deque[tuple[ObjectPath, Any]] = deque(_roots(factories))
    visited = 0
    while waiting and missing and visited < _MOST:
        path, thing = waiting.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        visited += 1
        if id(thing) in missing:
            missing.discard(id(thing))
            found[id(thing)] = path.text
        sort = sort_of(thing)
        if sort in (Sort.LEAF, Sort.MODULE):
            continue
        waiting += [
            (part.path, part.thing)
            for part in parts_of(thing, sort, path, compiled=True)
            if id(part.thing) not in seen
        ]
    return found


def _roots(factories: list[Callable[..., Any]]) -> Iterator[tuple[ObjectPath, Any]]:
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
        yield ObjectPath(name_of(factory)), factory
    for module in modules:
        for name, value in list(vars(module).items()):
            if not name.startswith("__"):
                label = module.__name__
                yield ObjectPath(f"{MODULE_ATTRIBUTE}{label}.{name}"), value


def name_of(factory: Any) -> str:
    """Return what the user calls a factory."""
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]
