"""Module variables that a study's functions use, identified by their text or by their value.

A variable whose text defines its value (a number, a list of numbers, a path made of others) is identified
by its text, not by its current value: a cache that starts empty is the same study when it is full. A
result of a call is identified by its value if that is plain, so that another file read at import counts
as a change. A value from the clock, the environment or the machine differs between processes, and is
identified by its text.

All of this takes time linear in the size of the file. The work of reading values is limited by a count
instead of a time, because a fingerprint must be the same on a slow machine.
"""

from __future__ import annotations

import ast
import enum
import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
"""Calls whose results their arguments determine."""

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
        # A script's own process has no seed.
        *("random", "numpy.random"),
        *("secrets", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid"),
    }
)
"""Modules whose results differ between processes or machines."""

_PATHS_OF_THE_MOMENT = frozenset({"absolute", "cwd", "expanduser", "home", "resolve"})

_DEEPEST = 20

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_MOST_WORK = 200_000
"""Maximum number of plain values that one fingerprint reads, which takes about 200 ms."""

_BYTES = 8_192
"""Bytes of an array that are hashed in the time of reading one plain value."""
_BYTES_IN_STRIDES = 2_048
_CHARACTERS = 512


class PlainTexts:
    """Texts of plain values for one fingerprint, limited by `_MOST_WORK`."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    @property
    def exhausted(self) -> bool:
        """Return whether the limit is reached, after which no value is read."""
        return self._left < 0

    def of(self, value: object, depth: int = 0) -> str | None:
        """Return a text that identifies ``value`` in every process.

        None if it is not a plain value, or if the limit is reached.
        """
        if depth > _DEEPEST or not self._spend():
            return None
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, range, slice):
            if isinstance(value, str | bytes) and not self._spend(len(value) // _CHARACTERS):
                return None
            return f"{kind.__name__}:{value!r}"
        if isinstance(value, enum.Enum):
            return f"{kind.__qualname__}.{value.name}"
        if isinstance(value, PurePath):
            return f"Path:{value}"
        if isinstance(value, np.dtype):
            return f"dtype:{value.str}"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            ordered = value.flags.c_contiguous
            if not self._spend(value.nbytes // (_BYTES if ordered else _BYTES_IN_STRIDES)):
                return None
            content = xxhash.xxh3_128(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            return f"array:{value.dtype.str}{value.shape}{content.hexdigest()}"
        return self._of_container(value, depth + 1)

    def _spend(self, units: int = 1) -> bool:
        """Count work, and return whether it is within the limit."""
        self._left -= units
        return self._left >= 0

    def _of_container(self, value: Any, depth: int) -> str | None:
        kind = type(value)
        if kind in (dict, types.MappingProxyType):
            texts = []
            for key, item in value.items():
                texts.append((self.of(key, depth), self.of(item, depth)))
                if None in texts[-1]:
                    return None
            return f"dict:{{{','.join(sorted(f'{k}={v}' for k, v in texts))}}}"
        named = isinstance(value, tuple) and hasattr(kind, "_fields")
        if kind not in (list, tuple, set, frozenset) and not named:
            return None
        items = []
        for item in value:
            items.append(self.of(item, depth))
            if items[-1] is None:
                return None
        if kind in (set, frozenset):
            items.sort(key=str)
        return f"{kind.__name__}:[{','.join(map(str, items))}]"


def binding_statements(source: Source, name: str) -> Sequence[ast.stmt]:
    """Return the statements at the top level of ``source`` that assign to ``name`` or change it."""
    return _statements_by_name(source).get(name, ())


@functools.lru_cache(maxsize=256)
def _statements_by_name(source: Source) -> dict[str, list[ast.stmt]]:
    """Return the statements at the top level that bind names, by name."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in source.tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in dict.fromkeys(map(_bound_name, _outside_functions(statement))):
                if name is not None:
                    found.setdefault(name, []).append(statement)
    return found


def are_imports(statements: Iterable[ast.stmt]) -> bool:
    """Return whether one of the statements that bind a name imports it."""
    return any(isinstance(each, ast.Import | ast.ImportFrom) for each in statements)


def imported_as(statements: Iterable[ast.stmt], name: str) -> list[ast.alias]:
    """Return the import aliases that bind ``name``."""
    return [
        alias
        for statement in statements
        for alias in ast.walk(statement)
        if isinstance(alias, ast.alias) and _bound_name(alias) == name
    ]


def loaded_names(node: ast.AST) -> frozenset[str]:
    """Return the names that are read in ``node``, outside functions inside it."""
    return frozenset(
        each.id
        for each in _outside_functions(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    )


class ModuleConstants:
    """The variables of one module whose texts define their values.

    Whether a text defines a value depends on the variables in it. So all variables are classified at
    once, in two passes that visit each statement a bounded number of times: those that depend on a
    value of the moment, and those of the others that depend on a value without a defining text.

    Args:
        source: Text of the module.
        namespace: Variables of the module.
    """

    def __init__(self, source: Source, namespace: Mapping[str, Any]) -> None:
        self._by_name = _statements_by_name(source)
        statements = {id(s): s for bound in self._by_name.values() for s in bound}
        self._read = {key: _Statement(s, namespace) for key, s in statements.items()}
        self._names: dict[int, dict[str, None]] = {}
        for name, bound in self._by_name.items():
            for statement in bound:
                self._names.setdefault(id(statement), {})[name] = None
        self._of_the_moment = self._depending(self._begin_with_the_moment(), "mentioned")
        self._unwritten = self._depending(
            self._begin_with_the_unwritten(), "loaded", self._of_the_moment
        )

    def is_written_down(self, name: str) -> bool:
        """Return whether ``name`` is identified by its text, and the texts of the variables in it.

        This is also true for a value of the moment.
        """
        return name in self._by_name and name not in self._unwritten

    def _statements(self, name: str) -> list[_Statement]:
        return [self._read[id(statement)] for statement in self._by_name[name]]

    def _begin_with_the_moment(self) -> list[str]:
        return [
            name
            for name in self._by_name
            if any(each.of_the_moment or each.moments - {name} for each in self._statements(name))
        ]

    def _begin_with_the_unwritten(self) -> list[str]:
        found = []
        for name in self._by_name:
            statements = self._statements(name)
            if any(each.imports for each in statements) or (
                name not in self._of_the_moment
                and any(each.is_run or each.receivers - {name} for each in statements)
            ):
                found.append(name)
        return found

    def _depending(
        self, begin: list[str], relation: str, aside: AbstractSet[str] = frozenset()
    ) -> frozenset[str]:
        """Return ``begin`` and all names that depend on them, except those in ``aside``."""
        using: dict[str, list[int]] = {}
        for key, each in self._read.items():
            for name in getattr(each, relation):
                using.setdefault(name, []).append(key)
        found, waiting, users = set(begin), list(begin), dict[int, str]()
        while waiting:
            name = waiting.pop()
            for key in using.get(name, ()):
                # All names that a statement binds depend on the first; the first depends on a second.
                first, bound = users.setdefault(key, name), self._names[key]
                depending = bound if first == name else bound.keys() & {first}
                new = [n for n in depending if n != name and n not in found and n not in aside]
                found.update(new)
                waiting += new
        return frozenset(found)


class _Statement:
    """A statement that binds names: the names in it, and whether its text defines the values.

    Attributes:
        mentioned, loaded: Names in it; those of variables with values that it reads.
        of_the_moment: Whether it has an attribute whose value is of the moment.
        moments: Names in it of modules whose values are of the moment.
        imports: Whether it imports.
        is_run: Whether only running it gives the values.
        receivers: Variables whose methods it calls, which only change the variable itself.
    """

    def __init__(self, statement: ast.stmt, namespace: Mapping[str, Any]) -> None:
        self.mentioned: set[str] = set()
        self.loaded: set[str] = set()
        self.moments: set[str] = set()
        self.receivers: set[str] = set()
        self.of_the_moment = self.is_run = False
        self.imports = isinstance(statement, ast.Import | ast.ImportFrom)
        for node in _outside_functions(statement):
            if isinstance(node, ast.Attribute):
                self.of_the_moment |= node.attr in _PATHS_OF_THE_MOMENT or _is_of_the_moment(
                    _called(node, namespace)
                )
            elif isinstance(node, ast.Name):
                self._name(node, namespace)
            elif isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.With | ast.AsyncWith):
                self.is_run = True
            elif isinstance(node, ast.Call):
                receiver = _receiver(node, namespace)
                if receiver is None:
                    self.is_run = True
                elif receiver:
                    self.receivers.add(receiver)

    def _name(self, node: ast.Name, namespace: Mapping[str, Any]) -> None:
        if node.id in self.mentioned and not isinstance(node.ctx, ast.Load):
            return
        value = namespace.get(node.id)
        if node.id not in self.mentioned:
            self.mentioned.add(node.id)
            if node.id == "__file__" or _is_of_the_moment(value):
                self.moments.add(node.id)
        if (
            isinstance(node.ctx, ast.Load)
            and not isinstance(value, types.ModuleType)
            and not callable(value)
        ):
            self.loaded.add(node.id)


def _is_of_the_moment(value: object) -> bool:
    parts = _module_of(value).split(".")
    return any(".".join(parts[:count]) in _OF_THE_MOMENT for count in range(1, len(parts) + 1))


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


def _receiver(call: ast.Call, namespace: Mapping[str, Any]) -> str | None:
    """Return the variable whose method is called; "" if the arguments determine the result; else None."""
    if isinstance(_called(call.func, namespace), type):
        # Class and arguments determine an object.
        return ""
    if isinstance(call.func, ast.Name):
        return "" if call.func.id in _PURE else None
    # A method of a variable or of a text: `SIZES.append(3)`, `"a b".split()`.
    if isinstance(call.func, ast.Attribute):
        base = _base(call.func)
        if isinstance(base, ast.Name):
            return base.id
        return "" if isinstance(base, ast.Constant) else None
    return None


def _called(function: ast.AST, namespace: Mapping[str, Any]) -> object:
    """Return the value of a name, or of a module's attribute; None if it is unknown."""
    if isinstance(function, ast.Name):
        return namespace.get(function.id)
    if isinstance(function, ast.Attribute):
        module = _called(function.value, namespace)
        if type(module) is types.ModuleType:
            return vars(module).get(function.attr)
    return None


def _bound_name(node: ast.AST) -> str | None:
    """Return the variable that ``node`` binds, deletes or changes."""
    base: ast.AST | None = None
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        base = _base(node) if isinstance(node.ctx, ast.Store | ast.Del) else None
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        base = _base(node.value.func)
        base = None if base is node.value.func else base
    return base.id if isinstance(base, ast.Name) else None


def _base(node: ast.AST) -> ast.AST:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, _FUNCTIONS):
            waiting += reversed(list(ast.iter_child_nodes(each)))
