"""What is inside a callable or a container: what runs when it is called, and what it holds."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any


def is_made_of_others(value: object) -> bool:
    """Whether ``value`` only brings others together, whoever wrote its type."""
    kinds = (types.MethodType, functools.partial, staticmethod, classmethod, property)
    containers = (list, tuple, set, frozenset, dict, functools.cached_property)
    return isinstance(value, (*kinds, *containers)) or "__wrapped__" in attributes(value)


def reached_parts(value: Any, where: str) -> Iterator[tuple[str, object]]:
    """What runs when ``value`` is called."""
    if isinstance(value, types.MethodType):
        yield where, value.__func__
        yield f"the object that {where} is bound to", value.__self__
    elif isinstance(value, functools.partial):
        yield where, value.func
    elif isinstance(value, staticmethod | classmethod):
        yield where, value.__func__
    elif isinstance(value, property | functools.cached_property):
        parts = (getattr(value, name, None) for name in ("fget", "fset", "fdel", "func"))
        yield from ((where, part) for part in parts if part is not None)
    elif "__wrapped__" in attributes(value):
        yield where, attributes(value)["__wrapped__"]


def held_parts(value: Any, where: str) -> Iterator[tuple[str, object]]:
    """What ``value`` holds: a partial's arguments, a container's items."""
    if isinstance(value, functools.partial):
        for key, argument in (*enumerate(value.args, 1), *value.keywords.items()):
            yield f"argument {key!r} of the partial {where}", argument
    elif isinstance(value, dict):
        yield from ((f"{where}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{where}[{key}]", item) for key, item in enumerate(value))


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The variables of enclosing functions, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # A variable that is assigned only after this has nothing in its cell.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def defaults_of(function: types.FunctionType) -> Iterator[tuple[object, object]]:
    """The defaults of parameters, by position or name."""
    yield from enumerate(function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()


def named_defaults(function: types.FunctionType) -> dict[str, Any]:
    """The defaults of parameters, by the parameters' names."""
    code, defaults = function.__code__, function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    named = zip(arguments[len(arguments) - len(defaults) :], defaults, strict=False)
    return {**dict(named), **(function.__kwdefaults__ or {})}


def attributes(value: object) -> dict[str, Any]:
    """An object's own, without asking it."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def functions_of(member: object) -> Iterator[types.FunctionType]:
    """What a class's member runs: a method, or those of a property."""
    for name in ("", "fget", "fset", "fdel", "func"):
        part = getattr(member, name, None) if name else member
        part = getattr(part, "__func__", part)
        part = getattr(part, "__wrapped__", part) if not isinstance(part, type) else part
        if type(part) is types.FunctionType:
            yield part
