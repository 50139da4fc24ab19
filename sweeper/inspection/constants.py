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
from collections.abc import Collection, Mapping
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
    of_the_moment: set[str] = set()
    in_files: set[str] = set()
    opaque: set[str] = set()
    # The statements run in this order, so the properties of what one uses are known.
    for statement in source.compared.body:
        nodes = list(outside_functions(statement))
        # `numpy.random.seed(0)` changes a module, whose other names are as before.
        bound = {
            name
            for name in map(bound_name, nodes)
            if name is not None and not isinstance(namespace.get(name), types.ModuleType)
        }
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        values = {name for name in used if not callable(namespace.get(name))}
        inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        outer = [n for n in nodes if isinstance(n, ast.Name | ast.Attribute) and n not in inner]
        paths = [node for node in outer if _is_path_function(_static_value(node, namespace))]
        others = [node for node in outer if node not in paths]
        if used & of_the_moment or any(_is_of_the_moment(node, namespace) for node in others):
            of_the_moment |= bound
        if paths or used & {"__file__", *in_files} or any(map(_is_path_method, outer)):
            in_files |= bound
        if values & opaque or any(_is_opaque(node, bound, namespace) for node in nodes):
            opaque |= bound
    return {name: name in in_files for name in opaque - of_the_moment}


def _is_opaque(node: ast.AST, bound: Collection[str], namespace: Mapping[str, Any]) -> bool:
    """Return whether the text of ``node``, in a statement that binds ``bound``, does not define its value."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Import | ast.ImportFrom | ast.Await | ast.With | ast.AsyncWith)
    function = node.func
    value = _static_value(function, namespace)
    if isinstance(value, type) or _is_path_function(value) or _is_path_method(function):
        return False
    if isinstance(function, ast.Name):
        return function.id not in _PURE
    base = base_of(function)
    of_its_own = isinstance(base, ast.Name) and base.id in bound
    return not of_its_own and not isinstance(base, ast.Constant)


def _is_of_the_moment(node: ast.expr, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name, or something that it is an attribute of, belongs to `_OF_THE_MOMENT`."""
    parts = _module_of(_static_value(node, namespace)).split(".")
    if any(".".join(parts[:count]) in _OF_THE_MOMENT for count in range(1, len(parts) + 1)):
        return True
    return isinstance(node, ast.Attribute) and _is_of_the_moment(node.value, namespace)


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


def _static_value(node: ast.AST, namespace: Mapping[str, Any]) -> object:
    """Return the value of a name, or of a module's attribute; None if it is unknown."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        module = _static_value(node.value, namespace)
        if type(module) is types.ModuleType:
            return vars(module).get(node.attr)
    return None
