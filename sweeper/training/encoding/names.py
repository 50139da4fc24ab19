"""Classes and functions by their names, for what came to be held during a training.

What was there at the beginning is referred to by its path. Of the rest, only what a loaded module
of the user's has under its own name, and functions and classes of the libraries that compute, can
be named; nothing is imported for it, and nothing is called.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from sweeper.inspection.sorts import is_users_module

_LIBRARIES = frozenset(
    {"argparse", "builtins", "collections", "itertools", "keras", "math", "numpy", "operator"}
    | {"tensorflow", "types"}
)


def name_of(thing: Any) -> str | None:
    """``module:qualified.name`` of a class or function; None where that does not lead to it."""
    module = getattr(thing, "__module__", None)
    if module is None and isinstance(thing, types.BuiltinFunctionType):
        module = "builtins"
    if type(thing).__name__ == "ufunc":
        module = "numpy"
    qualified = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if type(module) is not str or type(qualified) is not str:
        return None
    name = f"{module}:{qualified}"
    return name if find_named(name) is thing else None


def find_named(name: str) -> Any:
    """The inverse of `name_of`; None where there is no such thing, or where it may not be named."""
    module_name, _, qualified = name.partition(":")
    if module_name.partition(".")[0] not in _LIBRARIES and not is_users_module(module_name):
        return None
    found: Any = sys.modules.get(module_name)
    for part in qualified.split("."):
        if isinstance(found, types.ModuleType | type):
            found = vars(found).get(part)
        else:
            return None
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found if isinstance(found, type) or callable(found) else None
