"""What else holds an object: found only when something is amiss, and named in the user's names.

From the factories and the user's modules everything is searched in breadth, so that the shortest
name is found. What they do not lead to (an attribute of an installed library, a variable of another
thread) is looked for from the other side: who refers to it, and who to that.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sweeper.independence.ownership.parts import parts_of
from sweeper.inspection.object_paths import MODULE_ATTRIBUTE, ObjectPath
from sweeper.inspection.sorts import Sort, is_users_module, sort_of

_MOST = 300_000
_MOST_LEVELS = 7
_MOST_REFERRERS = 500


def holders_of(
    wanted: Iterable[object], factories: Iterable[Callable[..., Any]], avoid: Iterable[object] = ()
) -> Mapping[int, str]:
    """Where the factories and the user's modules have each of the objects, by id.

    Args:
        wanted: The objects.
        factories: The study's.
        avoid: Objects that are searched for nothing inside them.
    """
    missing = {id(thing) for thing in wanted}
    found: dict[int, str] = {}
    factories = list(factories)
    seen = {id(thing) for thing in avoid} - missing
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
    """The factories' own insides first, then the variables of every module of the user's."""
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
    """What the user calls a factory."""
    function = getattr(factory, "func", factory)
    name = getattr(function, "__qualname__", None) or type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def referrer_of(thing: object) -> str:
    """What refers to ``thing``, up to a module, a class or a thread's variables; empty for nothing.

    The garbage collector is asked, so it must see everything: see `AgeLine.thaw`. Each level up
    is one look through all objects of the process.
    """
    level: list[tuple[object, ...]] = [(thing,)]
    seen = {id(thing)}
    for _ in range(_MOST_LEVELS):
        ways = {id(way[0]): way for way in level}
        level = []
        for referrer in gc.get_referrers(*[way[0] for way in ways.values()])[:_MOST_REFERRERS]:
            if id(referrer) in seen or type(referrer) is types.FrameType:
                continue
            seen.add(id(referrer))
            each = next((ref for ref in gc.get_referents(referrer) if id(ref) in ways), None)
            if each is None or referrer is ways or referrer is level:
                continue
            shown = _shown(referrer, each)
            if shown:
                return _path_down(shown, ways[id(each)])
            level.append((referrer, *ways[id(each)]))
        if not level:
            break
    return ""


def _shown(referrer: object, each: object) -> str:
    if type(referrer) is dict:
        for name, module in list(sys.modules.items()):
            if type(module) is types.ModuleType and vars(module) is referrer:
                key = _key_of(referrer, each)
                return f"{MODULE_ATTRIBUTE}{name}.{key}" if key else ""
    if isinstance(referrer, type):
        for name, value in vars(referrer).items():
            if value is each:
                return f"class attribute {referrer.__module__}.{referrer.__qualname__}.{name}"
    return ""


def _key_of(namespace: dict[Any, Any], value: object) -> str:
    return next((str(key) for key, held in namespace.items() if held is value), "")


def _path_down(shown: str, way: tuple[object, ...]) -> str:
    """From what has a name down to the object, as far as attributes and items tell."""
    path = ObjectPath(shown)
    current = way[0]
    for target in way[1:]:
        if type(target) is dict and getattr(current, "__dict__", None) is target:
            continue
        step = next(
            (
                part.path
                for part in parts_of(current, sort_of(current), path, compiled=True)
                if part.thing is target
            ),
            None,
        )
        if step is not None:
            path = step
        current = target
    return path.text
