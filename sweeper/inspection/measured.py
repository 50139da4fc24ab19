"""Attributes, keys and metrics to which a user's class assigns times measured by a clock.

A date or a rounded time can be equal in two runs and different in a third, so a comparison of runs does
not show that it is measured. The source of the class shows it; no code of it is run.
"""

import ast
import datetime as dt
import inspect
import sys
import textwrap
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sweeper.inspection.constants import static_value
from sweeper.inspection.sources import is_users

_OF_DATES = frozenset({"now", "today", "utcnow"})
_LOCAL = "local "
"""Prefix of a local variable, which is no attribute of that name."""


def measured_names(cls: type) -> frozenset[str]:
    """Return the attributes, keys and methods of ``cls`` whose values come from a clock."""
    measured: set[str] = set()
    for base in cls.__mro__:
        try:
            if not is_users(inspect.getsourcefile(base) or ""):
                continue
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, SyntaxError, TypeError):
            # Without its source, no name counts as measured.
            continue
        measured |= _reached(tree, _names_in(tree, base.__module__))
    return frozenset(name for name in measured if not name.startswith(_LOCAL))


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


def _reached(tree: ast.AST, names: Mapping[str, Any]) -> set[str]:
    """Return the names that a clock's value reaches within one class, by fixed-point iteration."""
    assignments = list(_assignments(tree))
    reached: set[str] = set()
    while True:
        new = {to for value, to in assignments if to and _is_measured(value, names, reached)}
        if new <= reached:
            return reached
        reached |= new


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield each value that is assigned, returned or passed to a method, with the name that gets it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield part.value, node.name
        elif (
            isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None
        ):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                    yield node.value, _name_of(part)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from ((argument, _name_of(node.func.value)) for argument in node.args)


def _name_of(node: ast.AST) -> str:
    """Return the innermost name or key in an expression; empty if it has none."""
    if isinstance(node, ast.Name):
        return f"{_LOCAL}{node.id}"
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return node.slice.value
        return _name_of(node.value)
    return ""


def _is_measured(value: ast.expr, names: Mapping[str, Any], measured: Collection[str]) -> bool:
    return any(
        (isinstance(node, ast.Call) and _is_clock(node.func, names)) or _name_of(node) in measured
        for node in ast.walk(value)
    )


def _is_clock(function: ast.expr, names: Mapping[str, Any]) -> bool:
    if isinstance(function, ast.Attribute) and function.attr in _OF_DATES:
        return static_value(function.value, names) in (dt.datetime, dt.date)
    called = static_value(function, names)
    return type(called) is types.BuiltinFunctionType and called.__module__ == "time"
