"""Which modules code imports when it runs, and their files, without importing any."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator


def imported_in(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that ``node`` imports, by their whole names, and what might be modules in them."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            base = each.module or ""
            if each.level:
                parents = package.split(".")[: len(package.split(".")) - each.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in each.names)


def file_of_module(name: str) -> str | None:
    """The file of a module that may not have been imported; nothing is imported to find it."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return file if isinstance(file, str) else None
    path: list[str] | None = None
    spec = None
    for part, _ in enumerate(name.split("."), 1):
        whole = ".".join(name.split(".")[:part])
        try:
            if path is None:
                spec = importlib.util.find_spec(whole)
            else:
                spec = importlib.machinery.PathFinder.find_spec(whole, path)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return None if spec is None or not spec.has_location else spec.origin
