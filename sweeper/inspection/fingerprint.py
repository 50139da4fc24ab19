"""Fingerprint of the user's code that a study's factories reach.

A *part* is a function, class or variable at the top level of one of the user's modules: the meaning of the
statements that bind it, and of the imports that these use. From a part, the names in it are followed to other
parts, in other modules as well. A module that a function imports, or that is used other than by its
attributes, counts whole. What the factories hold (contents of closures, arguments of partials, attributes)
counts by value. Installed code (libraries, Python's own) is not read, because its versions are stored
elsewhere. No code of the user is run.

Code without a text (typed at a prompt, piped into Python, edited since its import) counts by its bytecode and
the values of the variables that it reads; a notebook's cells by their text and these values.

A part is named by its name in its file. Outside of the model factory's file, the name of the module
precedes it. So the file of the factory can be renamed, and run as a script or from the command line.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from sweeper.inspection.code import (
    attributes,
    closure_of,
    defaults_of,
    functions_of,
    globals_of,
    imported_modules,
    parts_of,
)
from sweeper.inspection.constants import ValueTexts, names_compared_by_value
from sweeper.inspection.sources import (
    Source,
    all_codes,
    bound_name,
    find_module_file,
    is_users_source,
    lines_of,
    meaning,
    meaning_of_code,
    outside_functions,
    source_of,
)
from sweeper.records.code import NO_TEXT, CodeFingerprint, CodePart, digest_of

_DEEPEST = 12
_NOT_COMPARED = frozenset({"__doc__", "__module__", "__firstlineno__", "__qualname__"})


def imported_in(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the full names of modules that ``node`` imports, and of names that may be modules in them."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and (base := _absolute(each, package)):
            yield base
            yield from (f"{base}.{alias.name}" for alias in each.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module that ``node`` imports from."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])


def file_of_module(name: str) -> str | None:
    """Return the file of a module, without importing it."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return file if isinstance(file, str) else None
    return find_module_file(name, sys.path)


def read_code(roots: Mapping[str, object]) -> CodeFingerprint:
    """Return the fingerprint of all code reached from ``roots``, the factories by their parameters."""
    code = CodeFingerprint(_Reader(roots).read().parts)
    if not code.has_text:
        return code
    return CodeFingerprint(code.parts, CodeFingerprint(_Reader(roots, text=False).read().parts))


def texts_of_cells(roots: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the reached notebook's cells, by file name in code objects.

    Another process, which gets the code by value, has no cells to read.
    """
    files = sorted(_Reader(roots).read().files)
    return {f: "".join(linecache.getlines(f)) for f in files if not Path(f).is_file()}


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


Chain = tuple[str, ...]
"""Attributes of attributes of a variable: ``("b", "c")`` for ``a.b.c``."""


class _Read(NamedTuple):
    """A statement's meaning, its lines, the variables that it uses, and the imports in it by name."""

    meaning: str
    lines: tuple[tuple[int, str], ...]
    used: Mapping[str, frozenset[Chain]]
    imports: Mapping[str, list[tuple[ast.stmt, ast.alias]]]


@functools.lru_cache(maxsize=4096)
def _read(statement: ast.stmt) -> _Read:
    """Read a statement; cached, because a statement may bind many names."""
    imports: dict[str, list[tuple[ast.stmt, ast.alias]]] = {}
    for node in outside_functions(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                imports.setdefault(str(bound_name(alias)), []).append((node, alias))
    return _Read(meaning(statement), lines_of([statement]), _used_in(statement), imports)


def _used_in(statement: ast.stmt) -> dict[str, frozenset[Chain]]:
    """Return the module's variables that a statement reads, with the attributes that it reads of them."""
    tree = ast.Module([statement], [])
    code = compile(tree, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    # The compiler knows which names are local to a function.
    names = {name for each in all_codes(code) for name in each.co_names}
    found: dict[str, set[Chain]] = {}
    inner: set[ast.AST] = set()
    for node in ast.walk(statement):
        base, chain = node, list[str]()
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
            inner.add(base)
        if isinstance(base, ast.Name) and base.id in names and node not in inner:
            found.setdefault(base.id, set()).add(tuple(chain))
    return {name: frozenset(chains) for name, chains in found.items()}


class _Reader:
    """Reader of all parts that objects reach, and of the names of their files.

    Args:
        roots: The factories by their parameters.
        text: Whether to read the text of the first factory's own file.
    """

    def __init__(self, roots: Mapping[str, object], *, text: bool = True) -> None:
        self.parts: dict[str, CodePart] = {}
        self.files: set[str] = set()
        self._roots = roots
        own = (f.__code__.co_filename for r in roots.values() for f in _functions_at(r))
        self._own_file = next(own, "")
        self._texts, self._movable_texts = ValueTexts(), ValueTexts(movable=True)
        self._sources: dict[str, Source | None] = {} if text else {self._own_file: None}
        self._owned: dict[str, bool] = {}
        self._by_value: dict[tuple[str, int], Mapping[str, bool]] = {}
        self._seen: dict[int, object] = {}
        self._done: set[Hashable] = set()
        # Chains of names may be longer than Python's stack.
        self._waiting: deque[Callable[[], None]] = deque()

    def read(self) -> Self:
        """Add all parts."""
        for name, root in self._roots.items():
            self._reach(name, root)
        while self._waiting:
            self._waiting.popleft()()
        return self

    def _is_new(self, *key: Hashable) -> bool:
        known = key in self._done
        self._done.add(key)
        return not known

    def _reach(self, where: str, value: object) -> None:
        """Add a value in an object or a closure: its text if it is plain, otherwise its parts."""
        text = self._texts.of(value)
        if text is not None:
            self._add(where, CodePart(digest_of(text)))
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._waiting.append(functools.partial(self._object, value, where))

    def _object(self, value: object, where: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, type):
            self._class(value)
        else:
            of_users_class = self._is_users_class(type(value))
            for name, part in parts_of(value, where, of_users_class=of_users_class):
                self._reach(name, part)

    def _function(self, function: types.FunctionType, where: str) -> None:
        code = function.__code__
        label = f"{_label(function, self._own_file)}{code.co_qualname}"
        users = self._is_users(code.co_filename)
        for variable, held in closure_of(function):
            # Other contents of a library's decorator belong to the library, whose version is stored.
            if variable != "__class__" and (users or where in self._roots or _defines_itself(held)):
                self._reach(f"closure variable {variable!r} of {label}", held)
        if "__wrapped__" in function.__dict__:
            self._reach(where, function.__dict__["__wrapped__"])
        if not users:
            return
        source = self._source(code.co_filename)
        outer, _, inner = code.co_qualname.partition(".")
        has_text = source is not None and source.runs(code)
        if inner or not has_text:
            for key, default in defaults_of(function):
                self._reach(f"default {key!r} of {label}", default)
        if source is None or not has_text:
            self._without_text(function, label)
        elif outer in source.bindings:
            self._variable(outer, function.__globals__, source)
        else:
            statements = source.lambdas(code.co_firstlineno)
            self._statements(label, statements, function.__globals__, source)

    def _without_text(self, function: types.FunctionType, label: str) -> None:
        self._add(label, CodePart(digest_of(meaning_of_code(function.__code__)), NO_TEXT))
        for name, value in globals_of(function):
            if isinstance(value, types.ModuleType):
                self._attributes(value, [()])
            self._value(name, value, function.__globals__, function.__code__.co_filename)
        for name in imported_modules(function):
            self._module(name)

    def _class(self, cls: type) -> None:
        for base in type.__dict__["__mro__"].__get__(cls)[1:]:
            if self._is_users_class(base):
                self._reach(base.__qualname__, base)
        if not self._is_users_class(cls):
            return
        methods, own = _methods_of(cls)
        file = _file_of_class(cls, own)
        label = f"{_label_of(cls.__module__, file, self._own_file)}{cls.__qualname__}"
        codes = [f.__code__ for f in own if f.__code__.co_filename == file]
        for function in methods:
            for variable, held in closure_of(function):
                if variable != "__class__":
                    self._reach(f"closure variable {variable!r} of {function.__qualname__}", held)
        source = self._source(file)
        name = cls.__qualname__.partition(".")[0]
        if source is not None and name in source.bindings and all(map(source.runs, codes)):
            namespace = own[0].__globals__ if own else vars(sys.modules.get(cls.__module__, ast))
            self._variable(name, namespace, source)
            return
        members = type.__dict__["__dict__"].__get__(cls).items()
        texts = {n: self._texts.of(member) for n, member in members if n not in _NOT_COMPARED}
        plain = sorted((n, text) for n, text in texts.items() if text is not None)
        digest = digest_of(f"{plain}{sorted(map(meaning_of_code, codes))}")
        self._add(label, CodePart(digest, source.shown if source else NO_TEXT))
        for function in methods:
            self._reach(function.__qualname__, function)

    def _variable(self, name: str, namespace: Mapping[str, Any], source: Source) -> None:
        """Add a module's variable by the text of the statements that bind it."""
        value = namespace.get(name)
        if _is_of_this_package(value) or not self._is_new(source.file, name):
            return
        codes = [f.__code__ for f in _functions_of_definition(value)]
        if any(c.co_filename == source.file and not source.runs(c) for c in codes):
            self._reach(name, value)
            return
        module = str(namespace.get("__name__", "__main__"))
        label = f"{_label_of(module, source.file, self._own_file)}{name}"
        statements = [s for s in source.bindings[name] if not _is_import(s)]
        by_value = name in namespace and not _defines_itself(value)
        compared = self._compared_by_value(namespace, source) if by_value else {}
        if name not in compared:
            self._statements(label, statements, namespace, source)
            return
        text = (self._movable_texts if compared[name] else self._texts).of(value)
        self._statements(label, statements, namespace, source, text or "")
        if text is None and not compared[name]:
            self._reach(label, value)

    def _compared_by_value(
        self, namespace: Mapping[str, Any], source: Source
    ) -> Mapping[str, bool]:
        if not source.is_file:
            # Another cell may bind the variable again.
            return dict.fromkeys(namespace, False)
        key = source.file, id(namespace)
        if key not in self._by_value:
            self._by_value[key] = names_compared_by_value(source, namespace)
        return self._by_value[key]

    def _statements(
        self,
        label: str,
        statements: Sequence[ast.stmt],
        namespace: Mapping[str, Any],
        source: Source,
        value: str = "",
    ) -> None:
        """Add statements as one part, and all that they use."""
        if not statements:
            return
        read = [_read(statement) for statement in statements]
        imports = [each for s in statements for each in self._follow(s, namespace, source)]
        digest = digest_of(*(each.meaning for each in read), *imports, value)
        first, last = statements[0].lineno, statements[0].end_lineno or 0
        lines = tuple(line for each in read for line in each.lines)
        part = CodePart(digest, source.shown, first, last if len(read) == 1 else first, lines)
        self._add(label, part)

    def _follow(
        self, statement: ast.stmt, namespace: Mapping[str, Any], source: Source
    ) -> list[str]:
        """Add all that a statement uses, and return the meanings of the imports that it uses."""
        used = _read(statement).used
        if self._is_new(statement):
            for name in sorted(used):
                self._use(name, used[name], namespace, source)
            for each in ast.walk(statement):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    for name in imported_in(each, _package_of(namespace)):
                        self._module(name)
        return [
            f"{_absolute(node, '.') if isinstance(node, ast.ImportFrom) else ''}:{meaning(alias)}"
            for name in sorted(used)
            for binding in source.bindings.get(name, ())
            for node, alias in _read(binding).imports.get(name, ())
        ]

    def _use(
        self,
        name: str,
        chains: frozenset[Chain],
        namespace: Mapping[str, Any],
        source: Source | None,
    ) -> None:
        """Add a variable that a statement uses; if it is a module, its attributes ``chains``."""
        if not self._is_new(id(namespace), name, chains):
            return
        value = namespace.get(name)
        statements = () if source is None else source.bindings.get(name, ())
        if source is not None and not all(map(_is_import, statements)):
            self._waiting.append(functools.partial(self._variable, name, namespace, source))
        imports = [each for s in statements for each in _read(s).imports.get(name, ())]
        if isinstance(value, types.ModuleType):
            self._attributes(value, chains)
        for node, alias in imports:
            if isinstance(node, ast.ImportFrom):
                self._imported(_absolute(node, _package_of(namespace)), alias.name, chains)
        if not statements and name in namespace:
            self._value(name, value, namespace, "" if source is None else source.file)

    def _imported(self, module_name: str, name: str, chains: frozenset[Chain]) -> None:
        """Add a variable of another module."""
        module = sys.modules.get(module_name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and self._is_users(file):
            self._use(name, chains, vars(module), self._source(file))

    def _attributes(self, module: types.ModuleType, chains: Iterable[Chain]) -> None:
        """Add attributes of a user's module; the whole module where it is used as a value."""
        file = getattr(module, "__file__", None)
        # A directory without an `__init__.py` is a module without a file.
        if isinstance(file, str) and not self._is_users(file):
            return
        contents = vars(module)
        for first, *others in filter(None, chains):
            inner = contents.get(first)
            if isinstance(file, str):
                self._use(first, frozenset({tuple(others)}), contents, self._source(file))
            elif isinstance(inner, types.ModuleType):
                self._attributes(inner, [tuple(others)])
        if () in chains:
            self._module(module.__name__)

    def _value(self, name: str, value: object, namespace: Mapping[str, Any], file: str) -> None:
        """Add a variable by its value."""
        if _is_of_this_package(value) or name.startswith("__"):
            return
        module = str(namespace.get("__name__", "__main__"))
        label = f"{_label_of(module, file, self._own_file)}{name}"
        if isinstance(value, types.ModuleType):
            text = "" if value.__name__ == name else value.__name__
        elif not _defines_itself(value):
            text = "" if self._texts.of(value) else type(value).__qualname__
        elif self._is_users_definition(value):
            text = ""
        else:
            text = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if text:
            self._add(label, CodePart(digest_of(text)))
        self._reach(label, value)

    def _is_users_definition(self, value: object) -> bool:
        if isinstance(value, type):
            return self._is_users_class(value)
        return any(self._is_users(f.__code__.co_filename) for f in _functions_at(value))

    def _module(self, name: str) -> None:
        """Add a complete module of the user's, and all that it imports."""
        waiting = [name]
        while waiting:
            name = waiting.pop(0)
            file = file_of_module(name)
            label = f"module {name}"
            if file is None or not self._is_users(file) or label in self.parts:
                continue
            source = self._source(file)
            if source is None:
                continue
            body = source.compared.body
            last = max((s.end_lineno or 0 for s in body), default=1)
            digest = digest_of(*map(meaning, body))
            self._add(label, CodePart(digest, source.shown, 1, last, lines_of(body)))
            package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
            waiting += imported_in(source.tree, package)

    def _source(self, file: str) -> Source | None:
        if file not in self._sources:
            self._sources[file] = source_of(file)
        return self._sources[file]

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


def _defines_itself(value: object) -> bool:
    """Return whether ``value`` is a function or class, whose own code defines it."""
    return isinstance(value, types.FunctionType | type) or "__wrapped__" in attributes(value)


def _is_of_this_package(value: object) -> bool:
    """Return whether ``value`` is the study or its result; a study's settings are compared separately."""
    return type(value).__module__.partition(".")[0] == "sweeper"


def _package_of(namespace: Mapping[str, Any]) -> str:
    return str(namespace.get("__package__") or "")


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _functions_of_definition(value: Any) -> list[types.FunctionType]:
    """Return a function, or those that are defined in a class."""
    if isinstance(value, type):
        return _methods_of(value)[1]
    return [value] if isinstance(value, types.FunctionType) else []


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
