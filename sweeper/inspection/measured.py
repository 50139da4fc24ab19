"""Attributes, keys and metrics to which a user's class assigns times measured by a clock.

A date or a rounded time can be equal in two runs and different in a third, so a comparison of runs does
not show that it is measured. The source of the class shows it; no code of it is run.
"""

from __future__ import annotations

import ast
import datetime as dt
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

from sweeper.inspection.sources import is_users

_OF_DATES = frozenset({"now", "today", "utcnow"})


def measured_names(cls: type) -> frozenset[str]:
    """Return the attributes, keys and methods of ``cls`` whose values come from a clock."""
    found: set[str] = set()
    for base in cls.__mro__:
        try:
            if not is_users(inspect.getsourcefile(base) or ""):
                continue
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError, TypeError):
            # Without its source, no name counts as measured.
            continue
        found |= _Measured(tree, _names_in(tree, base.__module__)).names()
    return frozenset(found)


def _names_in(tree: ast.AST, module: str) -> dict[str, Any]:
    """Return the values of names in a class's source: module variables and local imports."""
    names = dict(vars(sys.modules.get(module, types)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                names[alias.asname or name] = sys.modules.get(name)
        elif isinstance(node, ast.ImportFrom):
            source = sys.modules.get(node.module or "")
            names |= {a.asname or a.name: getattr(source, a.name, None) for a in node.names}
    return names


class _Measured:
    """Names that a clock's value reaches within one class, by fixed-point iteration."""

    def __init__(self, tree: ast.AST, names: Mapping[str, Any]) -> None:
        self._tree = tree
        self._names = names
        self._found: set[str] = set()

    def names(self) -> set[str]:
        known = -1
        while len(self._found) > known:
            known = len(self._found)
            for node in ast.walk(self._tree):
                self._look_at(node)
        return {name for name in self._found if not name.startswith("local ")}

    def _look_at(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            if any(value is not None and self._is_measured(value) for value in returned):
                self._found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            if node.value is not None and self._is_measured(node.value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._found.update(_given(target))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and any(map(self._is_measured, node.args))
        ):
            self._found.update(_given(node.func.value))

    def _is_measured(self, value: ast.expr) -> bool:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and self._is_clock(node.func):
                return True
            name: object = None
            if isinstance(node, ast.Name):
                name = f"local {node.id}"
            elif isinstance(node, ast.Attribute):
                name = node.attr
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                name = node.slice.value
            if name in self._found:
                return True
        return False

    def _is_clock(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute) and function.attr in _OF_DATES:
            return self._resolved(function.value) in (dt.datetime, dt.date)
        called = self._resolved(function)
        return type(called) is types.BuiltinFunctionType and called.__module__ == "time"

    def _resolved(self, node: ast.expr) -> Any:
        """Return the value of a name, or of an attribute of a module or class; None if unknown."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            # An attribute of another object may be a property, which must not be run.
            if inspect.ismodule(owner) or inspect.isclass(owner):
                return inspect.getattr_static(owner, node.attr, None)
        return None


def _given(target: ast.expr) -> Iterator[str]:
    """Yield the innermost name that an assignment to ``target`` changes."""
    if isinstance(target, ast.Subscript):
        key = target.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        else:
            yield from _given(target.value)
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Name):
        yield f"local {target.id}"
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _given(each)
