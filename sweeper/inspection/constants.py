"""Module variables whose values count in a code fingerprint, and the texts of values.

A variable is compared by the text of the statements that bind it: a cache that starts empty is the same
study when it is full. Where a statement calls code that may read a file (`json.load`, `helpers.read()`),
the plain value counts as well, as it does where a statement reads the arguments of the program. A value from the
clock, the environment or the machine differs between processes and never counts.
"""

import argparse
import ast
import enum
import os
import sys
import types
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import xxhash

from sweeper.inspection.sources import Source, base_of, bound_name, outside_functions
from sweeper.records.code import digest_of

_OF_THE_MOMENT = frozenset(
    {
        "datetime",
        "genericpath",
        "getpass",
        "multiprocessing",
        # A script's own process has no seed.
        "numpy.random",
        "random",
        "os",
        "platform",
        "posix",
        "psutil",
        "secrets",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)
"""Modules whose results differ between processes or machines."""

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, range, slice})
_DEEPEST = 40
"""Maximum depth of containers in containers; a deeper value is not plain."""


NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Classes whose objects are their attributes and nothing else."""


class ValueTexts:
    """Texts of plain values for one fingerprint.

    In paths the directory of ``file``, those above it and the home directory count as equal, so that the
    files can be moved.
    """

    def __init__(self, file: str) -> None:
        roots = (*Path(file).resolve().parents, Path(os.environ.get("HOME", "/")))
        directories = {str(path) for path in roots if path.name}
        self._directories = sorted(directories, key=len, reverse=True)
        self._known: dict[int, tuple[object, str | None]] = {}

    def of(self, value: Any, depth: int = 0) -> str | None:
        """Return a text that identifies ``value`` in every process; None if it is not a plain value."""
        kind = type(value)
        if kind in _SCALARS or isinstance(value, PurePath):
            text = f"{'Path' if isinstance(value, PurePath) else kind.__name__}:{value!r}"
            for directory in self._directories if "/" in text else ():
                text = text.replace(directory, "…")
            return text
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__}.{value.name}"
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
        ordered = kind in (list, tuple) or (isinstance(value, tuple) and hasattr(kind, "_fields"))
        if kind in NAMESPACES:
            value, kind = vars(value), dict
        mapping = kind in (dict, types.MappingProxyType)
        if not ordered and not mapping and kind not in (set, frozenset):
            return None
        texts = [self.of(item, depth) for item in (value.items() if mapping else value)]
        plain = [text for text in texts if text is not None]
        if len(plain) < len(texts):
            return None
        return f"{kind.__name__}:{digest_of(*(plain if ordered else sorted(plain)))}"


def names_compared_by_value(source: Source, namespace: Mapping[str, Any]) -> Collection[str]:
    """Return the variables of a module whose texts do not define their values."""
    of_the_moment: set[str] = set()
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
        inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        outer = [n for n in nodes if isinstance(n, ast.Name | ast.Attribute) and n not in inner]
        if used & of_the_moment or any(_is_of_the_moment(node, namespace) for node in outer):
            of_the_moment |= bound
        values = {name for name in used if not callable(namespace.get(name))}
        given = any(static_value(node, namespace) is sys.argv for node in outer)
        if given or values & opaque or any(_is_opaque(node, bound, namespace) for node in nodes):
            opaque |= bound
    return opaque - of_the_moment


def _is_opaque(node: ast.AST, bound: Collection[str], namespace: Mapping[str, Any]) -> bool:
    """Return whether the text of ``node``, in a statement that binds ``bound``, does not define its value."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Import | ast.ImportFrom | ast.Await | ast.With | ast.AsyncWith)
    base = base_of(node.func)
    is_method = base is not node.func
    of_its_own = is_method and isinstance(base, ast.Name) and base.id in bound
    makes_an_object = isinstance(static_value(node.func, namespace), type)
    return not (makes_an_object or of_its_own or isinstance(base, ast.Constant))


def _is_of_the_moment(node: ast.expr, namespace: Mapping[str, Any]) -> bool:
    """Return whether a name, or something that it is an attribute of, belongs to `_OF_THE_MOMENT`."""
    value = static_value(node, namespace)
    module = _module_of(value)
    if value is sys.argv or value is os.getcwd or value is os.fspath or module == os.path.__name__:
        return False
    parts = module.split(".")
    if any(".".join(parts[:count]) in _OF_THE_MOMENT for count in range(1, len(parts) + 1)):
        return True
    return isinstance(node, ast.Attribute) and _is_of_the_moment(node.value, namespace)


def _module_of(value: object) -> str:
    """Return the module of a function or class, or of the class of another value; empty for None."""
    if value is None or isinstance(value, types.ModuleType):
        return "" if value is None else value.__name__
    if (
        isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)
        and value.__module__
    ):
        return value.__module__
    # Such as `random.random`, a method of the module's generator.
    return type(getattr(value, "__self__", value)).__module__


def static_value(node: ast.AST, namespace: Mapping[str, Any]) -> object:
    """Return the value of a name, or of a module's attribute; None if it is unknown."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        module = static_value(node.value, namespace)
        if type(module) is types.ModuleType:
            return vars(module).get(node.attr)
    return None
