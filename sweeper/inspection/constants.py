"""Module variables that a study's functions use: by how they are written, or by what they hold.

A variable that is written down whole (a number, a list of them, a path made of others) is its text,
whatever it holds by the time one looks: a cache that starts empty is the same study when it is
full. One that comes of a call is what it holds, where that is a plain value, so that another file
read at import counts as a change. What comes of the clock, the environment or the machine is its
text again: it is another one in every process.
"""

from __future__ import annotations

import ast
import enum
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import xxhash

from sweeper.inspection.sources import Source

_PURE = frozenset(
    {
        *("abs", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "float", "frozenset"),
        *("int", "len", "list", "max", "min", "object", "pow", "range", "reversed", "round"),
        *("set", "sorted", "str", "sum", "tuple", "zip"),
        *("Counter", "OrderedDict", "Path", "PurePath", "defaultdict", "deque"),
    }
)
"""Calls whose results their arguments say."""

_OF_THE_MOMENT = frozenset(
    {
        *(
            "datetime",
            "getpass",
            "multiprocessing",
            "os",
            "platform",
            "posix",
            "posixpath",
            "psutil",
        ),
        # In a script's own process numbers are drawn from no seed of ours.
        *("random", "numpy.random"),
        *("secrets", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid"),
    }
)
"""Modules whose answers are others in another process or on another machine."""

_PATHS_OF_THE_MOMENT = frozenset({"absolute", "cwd", "expanduser", "home", "resolve"})

_DEEPEST = 20

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def plain_text(value: object, depth: int = 0) -> str | None:
    """A text that says what ``value`` is, in every process alike; None where it is no plain value."""
    if depth > _DEEPEST:
        return None
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes, range, slice):
        return f"{kind.__name__}:{value!r}"
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, PurePath):
        return f"Path:{value}"
    if isinstance(value, np.dtype):
        return f"dtype:{value.str}"
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        content = xxhash.xxh3_128(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return f"array:{value.dtype.str}{value.shape}{content.hexdigest()}"
    return _container_text(value, depth + 1)


def _container_text(value: Any, depth: int) -> str | None:
    kind = type(value)
    if kind in (dict, types.MappingProxyType):
        texts = [(plain_text(k, depth), plain_text(v, depth)) for k, v in value.items()]
        if any(None in pair for pair in texts):
            return None
        return f"dict:{{{','.join(sorted(f'{k}={v}' for k, v in texts))}}}"
    named = isinstance(value, tuple) and hasattr(kind, "_fields")
    if kind not in (list, tuple, set, frozenset) and not named:
        return None
    items = [plain_text(item, depth) for item in value]
    if None in items:
        return None
    if kind in (set, frozenset):
        items.sort(key=str)
    return f"{kind.__name__}:[{','.join(map(str, items))}]"


def binding_statements(source: Source, name: str) -> list[ast.stmt]:
    """The statements at the top level of ``source`` that assign to ``name`` or change it."""
    return [
        statement
        for statement in source.tree.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and any(_binds(node, name) for node in _outside_functions(statement))
    ]


def are_imports(statements: Iterable[ast.stmt]) -> bool:
    """Whether one of the statements that bind a name imports it."""
    return any(isinstance(each, ast.Import | ast.ImportFrom) for each in statements)


def imported_as(statements: Iterable[ast.stmt], name: str) -> list[ast.alias]:
    """What is imported under ``name``, whatever else the same statements import."""
    return [
        alias
        for statement in statements
        for alias in ast.walk(statement)
        if isinstance(alias, ast.alias) and _binds(alias, name)
    ]


def loaded_names(node: ast.AST) -> frozenset[str]:
    """The names that are read in ``node``, functions inside it aside."""
    return frozenset(
        each.id
        for each in _outside_functions(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )


def is_written_down(
    source: Source, name: str, namespace: Mapping[str, Any], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether the text of ``name``, and of the variables in it, says all that it will hold.

    True too where it holds what is of the moment, so that its text alone can be compared.
    """
    statements = binding_statements(source, name)
    if not statements or any(isinstance(s, ast.Import | ast.ImportFrom) for s in statements):
        return False
    if _is_of_the_moment(source, name, namespace, frozenset()):
        return True
    for statement in statements:
        for node in _outside_functions(statement):
            if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.With | ast.AsyncWith):
                return False
            if isinstance(node, ast.Call) and not _is_pure(node, name, namespace):
                return False
            if (
                isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Load)
                and node.id != name
                and node.id not in seen
                and binding_statements(source, node.id)
                and not isinstance(namespace.get(node.id), types.ModuleType)
                and not callable(namespace.get(node.id))
                and not is_written_down(source, node.id, namespace, seen | {name})
            ):
                return False
    return True


def _is_of_the_moment(
    source: Source, name: str, namespace: Mapping[str, Any], seen: frozenset[str]
) -> bool:
    for statement in binding_statements(source, name):
        for node in _outside_functions(statement):
            if isinstance(node, ast.Attribute) and (
                node.attr in _PATHS_OF_THE_MOMENT
                or not _OF_THE_MOMENT.isdisjoint(_packages(_module_of(_called(node, namespace))))
            ):
                return True
            if not isinstance(node, ast.Name) or node.id == name or node.id in seen:
                continue
            module = _module_of(namespace.get(node.id))
            if node.id == "__file__" or not _OF_THE_MOMENT.isdisjoint(_packages(module)):
                return True
            if _is_of_the_moment(source, node.id, namespace, seen | {name}):
                return True
    return False


def _packages(module: str) -> set[str]:
    """A module's name, and the names of the packages that it is in."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _module_of(value: object) -> str:
    if type(value) is types.ModuleType:
        return value.__name__
    if isinstance(value, types.MethodType | types.BuiltinFunctionType) and not isinstance(
        value.__self__, types.ModuleType | None
    ):
        # As `random.random` is: a method of one generator that the module has.
        return type(value.__self__).__module__
    if isinstance(value, type) or type(value) in (types.FunctionType, types.BuiltinFunctionType):
        return str(value.__module__)
    return ""


def _is_pure(call: ast.Call, name: str, namespace: Mapping[str, Any]) -> bool:
    if isinstance(_called(call.func, namespace), type):
        # What an object is made of, its class and its arguments say.
        return True
    if isinstance(call.func, ast.Name):
        return call.func.id in _PURE
    # A method of the variable itself, or of a text: `SIZES.append(3)`, `"a b".split()`.
    if isinstance(call.func, ast.Attribute):
        base = _base(call.func)
        return isinstance(base, ast.Constant) or (isinstance(base, ast.Name) and base.id == name)
    return False


def _called(function: ast.AST, namespace: Mapping[str, Any]) -> object:
    """What a name, or an attribute of a module, is; None where that is not known."""
    if isinstance(function, ast.Name):
        return namespace.get(function.id)
    if isinstance(function, ast.Attribute):
        module = _called(function.value, namespace)
        if type(module) is types.ModuleType:
            return vars(module).get(function.attr)
    return None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0]) == name
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(
        node.ctx, ast.Store | ast.Del
    ):
        base = _base(node)
        return isinstance(base, ast.Name) and base.id == name
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        base = _base(node.value.func)
        return isinstance(base, ast.Name) and base.id == name and base is not node.value.func
    return False


def _base(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        each = waiting.pop(0)
        yield each
        if not isinstance(each, _FUNCTIONS):
            waiting[:0] = ast.iter_child_nodes(each)
