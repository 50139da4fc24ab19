"""Module variables whose values count in a code fingerprint, and the texts of values.

A variable is compared by the text of the statements that bind it: a cache that starts empty is the same
study when it is full. Where a statement calls code that may read a file (`json.load`, `helpers.read()`),
the plain value counts as well. A value from the clock, the environment or the machine differs between
processes and never counts. Where a statement names the place of the study's files (`__file__`, `os.path`),
paths in the value do not count, so that the files can be moved.

All of this takes time linear in the size of the file and of the values.
"""

from __future__ import annotations

import ast
import enum
import os
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import xxhash

from sweeper.inspection.sources import Source, base_of, bound_name, outside_functions
from sweeper.records.code import digest_of

_PURE = frozenset(
    {
        *("abs", "bool", "bytes", "complex", "dict", "divmod", "enumerate", "float", "frozenset"),
        *("int", "len", "list", "max", "min", "object", "pow", "range", "reversed", "round"),
        *("set", "sorted", "str", "sum", "tuple", "zip"),
    }
)
"""Functions of Python whose results their arguments determine."""

_OF_THE_MOMENT = frozenset(
    {
        *("datetime", "getpass", "multiprocessing", "os", "platform", "posix", "posixpath"),
        # A script's own process has no seed.
        *("random", "numpy.random"),
        *("psutil", "secrets", "socket", "subprocess", "sys", "tempfile", "threading", "time"),
        "uuid",
    }
)
"""Modules whose results differ between processes or machines."""

_PATH_FUNCTIONS = {
    id(function): function
    for function in (
        *(os.fspath, os.getcwd, os.path.abspath, os.path.basename, os.path.dirname),
        *(os.path.expanduser, os.path.join, os.path.normpath, os.path.realpath, os.path.split),
        os.path.splitext,
    )
}
"""Functions that compute a path, by identity."""

_PATH_METHODS = frozenset({"absolute", "cwd", "expanduser", "home", "resolve"})
_A_PATH = "an absolute path"
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice})
_DEEPEST = 20


class ValueTexts:
    """Texts of plain values for one fingerprint.

    Args:
        movable: Whether absolute paths count as equal.
    """

    def __init__(self, *, movable: bool = False) -> None:
        self._movable = movable
        self._known: dict[int, tuple[object, str | None]] = {}

    def of(self, value: Any, depth: int = 0) -> str | None:
        """Return a text that identifies ``value`` in every process; None if it is not a plain value."""
        kind = type(value)
        if self._movable and isinstance(value, str | PurePath) and Path(value).is_absolute():
            return _A_PATH
        if kind in _SCALARS:
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
        if depth > _DEEPEST:
            return None
        # A value may contain another many times.
        if id(value) not in self._known:
            self._known[id(value)] = value, self._of_container(value, depth + 1)
        return self._known[id(value)][1]

    def _of_container(self, value: Any, depth: int) -> str | None:
        kind = type(value)
        if kind in (dict, types.MappingProxyType):
            keys, items = self._all(value.keys(), depth), self._all(value.values(), depth)
            if keys is None or items is None:
                return None
            pairs = sorted(f"{k}={v}" for k, v in zip(keys, items, strict=True))
            return f"dict:{digest_of(*pairs)}"
        named = isinstance(value, tuple) and hasattr(kind, "_fields")
        if kind not in (list, tuple, set, frozenset) and not named:
            return None
        texts = self._all(value, depth)
        if texts is None:
            return None
        if texts and set(texts) == {_A_PATH}:
            return _A_PATH
        unordered = kind in (set, frozenset)
        return f"{kind.__name__}:{digest_of(*(sorted(texts) if unordered else texts))}"

    def _all(self, items: Collection[object], depth: int) -> list[str] | None:
        if not self._movable and _SCALARS.issuperset(map(type, items)):
            return [f"{type(item).__name__}:{item!r}" for item in items]
        texts = [self.of(item, depth) for item in items]
        return None if None in texts else [text for text in texts if text is not None]


def names_compared_by_value(source: Source, namespace: Mapping[str, Any]) -> Mapping[str, bool]:
    """Return the variables of a module whose texts do not define their values.

    Args:
        source: Text of the module.
        namespace: Variables of the module.

    Returns:
        By name, whether the value may contain paths of this machine.
    """
    # One statement may bind many names.
    statements = dict.fromkeys(s for bound in source.bindings.values() for s in bound)
    read = [_Statement(statement, namespace) for statement in statements]
    of_the_moment = _depending([s for s in read if s.of_the_moment], read, "mentioned")
    names_a_file = _depending([s for s in read if s.names_a_file], read, "mentioned")
    opaque = [s for s in read if s.is_opaque and s.bound.isdisjoint(of_the_moment)]
    names = _depending(opaque, read, "loaded") - of_the_moment
    return {name: name in names_a_file for name in names}


class _Statement:
    """A statement that binds variables.

    Attributes:
        bound, mentioned: Variables that it binds, without modules; names in it.
        loaded: Variables in it that are neither modules nor functions or classes.
        of_the_moment: Whether it names something whose value is of the moment.
        names_a_file: Whether it names where a file is.
        is_opaque: Whether its text does not define the values that it gives.
    """

    def __init__(self, statement: ast.stmt, namespace: Mapping[str, Any]) -> None:
        nodes = list(outside_functions(statement))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {name for name in map(bound_name, nodes) if name is not None}
        # `numpy.random.seed(0)` changes a module, whose other names are as before.
        self.bound = frozenset(
            name for name in bound if not isinstance(namespace.get(name), types.ModuleType)
        )
        self.mentioned = frozenset(name.id for name in names)
        self.loaded = frozenset(
            name.id
            for name in names
            if isinstance(name.ctx, ast.Load) and not _is_code(namespace.get(name.id))
        )
        inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        outer = [n for n in nodes if isinstance(n, ast.Name | ast.Attribute) and n not in inner]
        of_paths = [node for node in outer if _is_path_function(_static_value(node, namespace))]
        self.of_the_moment = any(
            _is_of_the_moment(value)
            for node in outer
            if node not in of_paths
            for value in _static_values(node, namespace)
        )
        self.names_a_file = bool(of_paths) or any(
            _is_path_method(node) or (isinstance(node, ast.Name) and node.id == "__file__")
            for node in outer
        )
        self.is_opaque = any(
            isinstance(node, ast.Import | ast.ImportFrom | ast.Await | ast.With | ast.AsyncWith)
            or (isinstance(node, ast.Call) and not self._is_pure(node.func, namespace))
            for node in nodes
        )

    def _is_pure(self, function: ast.expr, namespace: Mapping[str, Any]) -> bool:
        """Return whether the arguments determine a call's result, or it changes only a bound variable."""
        value = _static_value(function, namespace)
        if isinstance(value, type) or _is_path_function(value) or _is_path_method(function):
            return True
        if isinstance(function, ast.Name):
            return function.id in _PURE
        base = base_of(function)
        return isinstance(base, ast.Constant) or (
            isinstance(base, ast.Name) and base.id in self.bound
        )


def _depending(
    begin: Iterable[_Statement], read: Iterable[_Statement], relation: str
) -> frozenset[str]:
    """Return the variables that the statements ``begin`` bind, and all that depend on them."""
    using: dict[str, list[_Statement]] = {}
    for statement in read:
        for name in getattr(statement, relation):
            using.setdefault(name, []).append(statement)
    found: set[str] = set()
    waiting = list(begin)
    while waiting:
        new = waiting.pop().bound - found
        found |= new
        for name in new:
            waiting += using.get(name, ())
    return frozenset(found)


def _is_code(value: object) -> bool:
    return isinstance(value, types.ModuleType) or callable(value)


def _is_of_the_moment(value: object) -> bool:
    parts = _module_of(value).split(".")
    return any(".".join(parts[:count]) in _OF_THE_MOMENT for count in range(1, len(parts) + 1))


def _is_path_function(value: object) -> bool:
    return id(value) in _PATH_FUNCTIONS


def _is_path_method(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _PATH_METHODS


def _module_of(value: object) -> str:
    if type(value) is types.ModuleType:
        return value.__name__
    if isinstance(value, types.MethodType | types.BuiltinFunctionType) and not isinstance(
        value.__self__, types.ModuleType | None
    ):
        # Such as `random.random`, a method of the module's generator.
        return type(value.__self__).__module__
    if isinstance(value, type) or type(value) in (types.FunctionType, types.BuiltinFunctionType):
        return str(value.__module__)
    return ""


def _static_values(node: ast.expr, namespace: Mapping[str, Any]) -> Iterator[object]:
    """Yield the values of a name or attribute, and of all that it is an attribute of."""
    yield _static_value(node, namespace)
    while isinstance(node, ast.Attribute):
        node = node.value
        yield _static_value(node, namespace)


def _static_value(node: ast.AST, namespace: Mapping[str, Any]) -> object:
    """Return the value of a name, or of a module's attribute; None if it is unknown."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        module = _static_value(node.value, namespace)
        if type(module) is types.ModuleType:
            return vars(module).get(node.attr)
    return None
