"""Fingerprint of the user's code that a study's factories reach: functions, classes, constants, modules.

The factories reach the functions and classes in the user's own files that their code names, the constants
that these use, the contents of closures, defaults and partials, and complete modules that are imported when
they run. Installed code (libraries, Python's own) is not read, because its versions are stored elsewhere.
No code of the user is run.

A part is named by its name in its file. Outside of the model factory's file, the name of the module
precedes it. So the file of the factory can be renamed, and run as a script or from the command line.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.util
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sweeper.inspection.code import (
    attributes,
    closure_of,
    defaults_of,
    functions_of,
    globals_of,
    held_parts,
    is_made_of_others,
    names_in,
    reached_parts,
)
from sweeper.inspection.constants import (
    ModuleConstants,
    PlainTexts,
    are_imports,
    binding_statements,
    imported_as,
    loaded_names,
)
from sweeper.inspection.sources import (
    Source,
    is_users_source,
    meaning,
    meaning_of_code,
    source_of,
    statements_of,
)
from sweeper.records.code import NO_TEXT, CodeFingerprint, CodePart, digest_of


def imported_in(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the full names of modules that ``node`` imports, and of names that may be modules in them."""
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
    """Return the file of a module, without importing it."""
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


_DEEPEST = 12
_FARTHEST = sys.maxsize


def read_code(roots: Mapping[str, object]) -> CodeFingerprint:
    """Return the fingerprint of all code reached from ``roots``, the factories by their parameters."""
    code = CodeFingerprint(reached_parts_and_files(roots)[0])
    if not code.has_text:
        return code
    without = reached_parts_and_files(roots, text=False)[0]
    return CodeFingerprint(code.parts, CodeFingerprint(without))


def reached_parts_and_files(
    roots: Mapping[str, object], *, text: bool = True
) -> tuple[dict[str, CodePart], set[str]]:
    """Return all parts reached from ``roots``, by name, and their files.

    Args:
        roots: The factories by their parameters.
        text: Whether to read the text of the first factory's own file.
    """
    reader = _Reader(_own_file(roots.values()), text=text)
    for name, root in roots.items():
        reader.reach(root, name)
    reader.finish()
    return reader.parts, reader.files


def texts_of_cells(roots: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the reached notebook's cells, by file name in code objects.

    Another process, which gets the code by value, has no cells to read.
    """
    files = sorted(reached_parts_and_files(roots)[1])
    return {f: "".join(linecache.getlines(f)) for f in files if not Path(f).is_file()}


def _own_file(roots: Iterable[object]) -> str:
    """Return the file that the first factory is written in."""
    for root in roots:
        for function in _functions_at(root):
            return function.__code__.co_filename
    return ""


def _functions_at(value: object) -> Iterator[types.FunctionType]:
    for _ in range(_DEEPEST):
        if isinstance(value, types.FunctionType):
            yield value
            return
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif "__wrapped__" in attributes(value):
            value = attributes(value)["__wrapped__"]
        else:
            value = inspect.getattr_static(type(value), "__call__", None)


class _Names(NamedTuple):
    """A module's variables, and the file that its code names."""

    variables: Mapping[str, Any]
    file: str


class _Read(NamedTuple):
    """A statement's meaning, the names that it reads, and its lines with their digests."""

    meaning: str
    loaded: frozenset[str]
    lines: tuple[tuple[int, str], ...]


@functools.lru_cache(maxsize=4096)
def _read(statement: ast.stmt) -> _Read:
    """Read a statement; cached, because a statement may bind many names."""
    return _Read(meaning(statement), loaded_names(statement), statements_of(statement))


class _Reader:
    """Reader of all parts that objects reach."""

    def __init__(self, own_file: str, *, text: bool) -> None:
        self.parts: dict[str, CodePart] = {}
        self.files: set[str] = set()
        self._own_file = own_file
        self._seen: dict[int, object] = {}
        self._texts = PlainTexts()
        self._sources: dict[str, Source | None] = {} if text else {own_file: None}
        self._owned: dict[str, bool] = {}
        self._constants: dict[tuple[str, int], ModuleConstants] = {}
        self._expanded: dict[int, int] = {}
        self._later: list[tuple[str, object, _Names, int]] = []

    def finish(self) -> None:
        """Add the constants whose depth was beyond the limit."""
        while self._later:
            self._variable(*self._later.pop(0))

    def reach(self, value: object, where: str, depth: int = 0) -> None:
        """Add the parts of ``value``; ``where`` describes its place."""
        if depth > _DEEPEST or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif is_made_of_others(value):
            for name, part in reached_parts(value, where):
                self.reach(part, name, depth + 1)
            self._all_held(held_parts(value, where), depth)
        elif self._is_users_class(type(value)):
            self.reach(type(value), where, depth + 1)
            items = attributes(value).items()
            self._all_held(((f"{where}.{name}", item) for name, item in items), depth)

    def _all_held(self, parts: Iterable[tuple[str, object]], depth: int) -> None:
        for where, part in parts:
            self._held(part, where, depth)
            if self._texts.exhausted:
                return

    def _held(self, value: object, where: str, depth: int) -> None:
        """Add a value in an object or a closure: its text if it is plain, otherwise its parts."""
        text = self._text(value, self._own_file)
        if text is not None:
            self._add(where, CodePart(digest_of(text)))
        else:
            self.reach(value, where, depth + 1)

    def _text(self, value: object, file: str) -> str | None:
        """Return the text of a plain value; when the limit of work is reached, add the text of ``file``."""
        text = self._texts.of(value)
        source = self._source(file) if self._texts.exhausted else None
        if source is not None:
            label = _label_of(Path(file).stem, file, self._own_file).removesuffix(".")
            self._add(f"module {label}".rstrip(), _part(source, source.tree, ""))
        return text

    def _function(self, function: types.FunctionType, depth: int) -> None:
        name = f"{_label(function, self._own_file)}{function.__code__.co_qualname}"
        users = self._is_users(function.__code__.co_filename)
        for variable, held in closure_of(function):
            # Other contents of a library's decorator belong to the library, whose version is stored.
            if users or depth == 0 or _defines_itself(held):
                self._held(held, f"closure variable {variable!r} of {name}", depth)
        wrapped = function.__dict__.get("__wrapped__")
        if wrapped is not None:
            self.reach(wrapped, name, depth + 1)
        if users:
            self._users_function(function, name, depth)

    def _users_function(self, function: types.FunctionType, name: str, depth: int) -> None:
        source, node = self._text_of(function.__code__)
        self._add(name, _part(source, node, meaning_of_code(function.__code__)))
        for key, default in defaults_of(function):
            if node is None or self._text(default, self._own_file) is None:
                self._held(default, f"default {key!r} of {name}", depth)
        for variable, value in globals_of(function):
            self._global(variable, value, function, depth)
        if node is not None:
            for variable in _names_at_definition(node):
                if variable in function.__globals__:
                    self._global(variable, function.__globals__[variable], function, depth)
            self._imported_inside(node, function.__globals__)

    def _class(self, cls: type, depth: int) -> None:
        for base in type.__dict__["__mro__"].__get__(cls):
            if base is not cls and self._is_users_class(base):
                self.reach(base, base.__qualname__, depth + 1)
        if not self._is_users_class(cls):
            return
        members = dict(type.__dict__["__dict__"].__get__(cls))
        methods, own = _methods_of(cls)
        file = _file_of_class(cls, own)
        codes = [f.__code__ for f in own if f.__code__.co_filename == file]
        source = self._source(file)
        node = None if source is None else source.class_(cls.__qualname__, codes)
        if node is None:
            for unsaid in ("__doc__", "__module__", "__firstlineno__", "__qualname__"):
                members.pop(unsaid, None)
            plain = {n: t for n, m in members.items() if (t := self._text(m, file)) is not None}
            instead = f"{sorted(plain.items())}{sorted(meaning_of_code(c) for c in codes)}"
        else:
            instead = ""
        label = _label_of(cls.__module__, file, self._own_file)
        self._add(f"{label}{cls.__qualname__}", _part(source, node, instead))
        self.files.add(file)
        for function in methods:
            self.reach_below(function, depth)
        if node is not None:
            namespace = own[0].__globals__ if own else vars(sys.modules.get(cls.__module__, ast))
            for variable in loaded_names(node):
                if variable in namespace:
                    self._variable(variable, namespace[variable], _Names(namespace, file), depth)

    def reach_below(self, function: types.FunctionType, depth: int) -> None:
        """Add the parts that a method uses; its own text is part of its class."""
        if not self._is_users(function.__code__.co_filename):
            self.reach(function, function.__qualname__, depth + 1)
            return
        for variable, held in closure_of(function):
            if variable == "__class__":
                continue
            self._held(held, f"closure variable {variable!r} of {function.__qualname__}", depth)
        for variable, value in globals_of(function):
            self._global(variable, value, function, depth)
        _, node = self._text_of(function.__code__)
        if node is not None:
            self._imported_inside(node, function.__globals__)

    def _global(self, name: str, value: object, function: types.FunctionType, depth: int) -> None:
        if isinstance(value, types.ModuleType):
            self._module(value, names_in(function), depth)
        else:
            file = function.__code__.co_filename
            self._variable(name, value, _Names(function.__globals__, file), depth)

    def _variable(self, name: str, value: object, names: _Names, depth: int) -> None:
        """Add a module's variable: a function or class of the user's, or a constant."""
        if type(value).__module__.partition(".")[0] == "sweeper":
            # The study, whose settings are compared separately.
            return
        if _defines_itself(value):
            self.reach(value, name, depth + 1)
            # `Layer = keras.layers.Dense` identifies the class, whose code is not read.
            source = self._source(names.file) if self._is_users(names.file) else None
            statements = () if source is None else binding_statements(source, name)
            if statements and not are_imports(statements):
                self._constant(name, value, names, depth)
        elif not inspect.isbuiltin(value) and not isinstance(value, types.ModuleType):
            self._constant(name, value, names, depth)

    def _module(self, module: types.ModuleType, used: frozenset[str], depth: int) -> None:
        file = getattr(module, "__file__", None)
        if depth > _DEEPEST or not isinstance(file, str) or not self._is_users(file):
            return
        contents = vars(module)
        for name in sorted(used & contents.keys()):
            value = contents[name]
            if not isinstance(value, types.ModuleType):
                self._variable(name, value, _Names(contents, file), depth + 1)
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._module(value, used, depth + 1)

    def _constant(self, name: str, value: object, names: _Names, depth: int) -> None:
        namespace, file = names
        module = str(namespace.get("__name__", "__main__"))
        path = str(namespace.get("__file__") or file) if module != "__main__" else file
        full = f"{_label_of(module, file, self._own_file)}{name}"
        if full in self.parts:
            return
        source = self._source(path) if self._is_users(path) else None
        statements = () if source is None else binding_statements(source, name)
        written = source is not None and self._is_written_down(source, name, namespace)
        text = None if written else self._text(value, path)
        if text is None:
            texts = tuple(_read(s).meaning for s in statements)
            if are_imports(statements):
                texts = tuple(meaning(alias) for alias in imported_as(statements, name))
            said = digest_of(*texts) if texts else digest_of(type(value).__qualname__)
        else:
            said = digest_of(text)
        self._add(full, _statements_part(said, source, statements, by_text=text is None))
        if text is None and not written:
            self.reach(value, full, depth + 1)
        if text is None:
            for variable in self._used_in(statements, depth):
                if variable != name and variable in namespace:
                    found = (variable, namespace[variable], names, depth + 1)
                    if depth > _DEEPEST:
                        # At this depth only constants are added, in any order.
                        self._later.append(found)
                    else:
                        self._variable(*found)

    def _used_in(self, statements: Sequence[ast.stmt], depth: int) -> list[str]:
        """Return the names that those of the statements read that were not visited before.

        One statement may bind many names.
        """
        new = [s for s in statements if self._expanded.get(id(s), _FARTHEST) > depth]
        self._expanded.update((id(s), depth) for s in new)
        return sorted(frozenset().union(*(_read(s).loaded for s in new)))

    def _imported_inside(self, node: ast.AST, namespace: Mapping[str, Any]) -> None:
        """Add the complete user's modules that ``node`` imports when it runs, and their imports."""
        waiting = list(imported_in(node, str(namespace.get("__package__") or "")))
        while waiting:
            name = waiting.pop(0)
            file = file_of_module(name)
            if file is None or not self._is_users(file) or f"module {name}" in self.parts:
                continue
            source = self._source(file)
            if source is None:
                continue
            self._add(f"module {name}", _part(source, source.tree, ""))
            package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
            waiting += imported_in(source.tree, package)

    def _text_of(self, code: types.CodeType) -> tuple[Source | None, ast.AST | None]:
        source = self._source(code.co_filename)
        return source, None if source is None else source.function(code)

    def _source(self, file: str) -> Source | None:
        if file not in self._sources:
            self._sources[file] = source_of(file)
        return self._sources[file]

    def _is_written_down(self, source: Source, name: str, namespace: Mapping[str, Any]) -> bool:
        key = source.file, id(namespace)
        if key not in self._constants:
            self._constants[key] = ModuleConstants(source, namespace)
        return self._constants[key].is_written_down(name)

    def _is_users(self, file: str) -> bool:
        if file not in self._owned:
            # Code that was passed by value is the user's even if its file or cell does not exist.
            self._owned[file] = is_users_source(file) or file == self._own_file
        if self._owned[file]:
            self.files.add(file)
        return self._owned[file]

    def _is_users_class(self, cls: type) -> bool:
        file = _file_of_class(cls, _methods_of(cls)[1])
        return bool(file) and self._is_users(file)

    def _add(self, name: str, part: CodePart) -> None:
        """Add a part; if the name is taken, with a number after it."""
        number, free = 1, name
        while free in self.parts:
            if self.parts[free] == part:
                return
            number += 1
            free = f"{name}#{number}"
        self.parts[free] = part


def _part(source: Source | None, node: ast.AST | None, instead: str) -> CodePart:
    if source is None or node is None:
        return CodePart(digest_of(instead), source.shown if source else NO_TEXT)
    if isinstance(node, ast.Module):
        first, last = 1, max((s.end_lineno or s.lineno for s in node.body), default=1)
    else:
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return CodePart(digest_of(meaning(node)), source.shown, first, last, statements_of(node))


def _statements_part(
    digest: str, source: Source | None, statements: Sequence[ast.stmt], *, by_text: bool
) -> CodePart:
    if source is None or not statements:
        return CodePart(digest, source.shown if source else "")
    first, last = statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
    described = tuple(line for s in statements for line in _read(s).lines) if by_text else ()
    return CodePart(digest, source.shown, first, last if len(statements) == 1 else first, described)


def _defines_itself(value: object) -> bool:
    """Return whether ``value`` is a function or class, whose own code defines it."""
    return isinstance(value, types.FunctionType | type) or "__wrapped__" in attributes(value)


def _methods_of(cls: type) -> tuple[list[types.FunctionType], list[types.FunctionType]]:
    """Return the functions of a class's members, and those that are defined in the class."""
    members = dict(type.__dict__["__dict__"].__get__(cls))
    methods = [f for member in members.values() for f in functions_of(member)]
    return methods, [f for f in methods if f.__qualname__.startswith(f"{cls.__qualname__}.")]


def _file_of_class(cls: type, methods: list[types.FunctionType]) -> str:
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and cls.__module__ != "__main__":
        return file
    files = [
        f.__code__.co_filename for f in methods if not f.__code__.co_filename.startswith("<string")
    ]
    return files[0] if files else file or ""


def _label(function: types.FunctionType, own_file: str) -> str:
    module = str(function.__globals__.get("__name__") or function.__module__ or "")
    return _label_of(module, function.__code__.co_filename, own_file)


def _label_of(module: str, file: str, own_file: str) -> str:
    """Return the prefix of a part's name; empty in the model factory's file and in notebooks."""
    if file == own_file or not Path(file).is_file():
        return ""
    if module in ("__main__", "") or "." not in module:
        return f"{Path(file).stem}."
    return f"{module}."


def _names_at_definition(node: ast.AST) -> Iterator[str]:
    """Yield the names in decorators and defaults."""
    arguments = getattr(node, "args", None)
    defaults = [*arguments.defaults, *arguments.kw_defaults] if arguments is not None else []
    for part in (*getattr(node, "decorator_list", ()), *defaults):
        if part is not None:
            yield from sorted(loaded_names(part))
