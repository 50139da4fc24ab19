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

import ast
import contextlib
import functools
import inspect
import itertools
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.inspection.code import (
    closure_of,
    functions_of,
    globals_of,
    imported_modules,
    named_defaults,
    parts_of,
)
from sweeper.inspection.constants import ValueTexts, names_compared_by_value, static_value
from sweeper.inspection.sorts import own_dict
from sweeper.inspection.sources import (
    Source,
    all_codes,
    find_module_file,
    is_users_source,
    meaning,
    source_of,
)
from sweeper.records.code import NO_TEXT, OF_ENVIRONMENT, CodeFingerprint, CodePart, digest_of

_DEEPEST = 12
"""Maximum number of wrappers around a function that are followed."""

_NOT_COMPARED = frozenset({"__doc__", "__module__", "__firstlineno__", "__qualname__"})

_LITERAL = str | bytes | int | float | complex | None
"""Types of literals, which give the same value in every process."""

Chain = tuple[str, ...]
"""Attributes of attributes of a variable: ``("b", "c")`` for ``a.b.c``."""


def read_code(roots: Mapping[str, object]) -> CodeFingerprint:
    """Return the fingerprint of all code reached from ``roots``, the factories by their parameters."""
    return CodeFingerprint(_Reader(roots).read())


class _Reader:
    """Reader of all parts that ``roots`` reach, the factories by their parameters."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._parts: dict[str, CodePart] = {}
        self._roots = roots
        files = (f.__code__.co_filename for r in roots.values() for f in _functions_at(r))
        self._own_file = next(files, "")
        self._texts = ValueTexts(self._own_file)
        self._sources: dict[str, Source] = {}
        self._by_value: dict[tuple[str, int], Collection[str]] = {}
        self._seen: dict[int, object] = {}
        self._done: set[Hashable] = set()
        # Chains of names may be longer than Python's stack.
        self._waiting: deque[Callable[[], None]] = deque()

    def read(self) -> dict[str, CodePart]:
        for name, root in self._roots.items():
            self._reach(name, root)
        while self._waiting:
            self._waiting.popleft()()
        return self._parts

    def _later(self, read: Callable[..., None], *arguments: Any) -> None:
        self._waiting.append(functools.partial(read, *arguments))

    def _is_new(self, *key: Hashable) -> bool:
        repeated = key in self._done
        self._done.add(key)
        return not repeated

    def _reach(self, where: str, value: object) -> None:
        """Add a value: its text if it is plain, otherwise its kind or name, and its parts."""
        text = self._texts.of(value)
        is_plain = text is not None
        if not is_plain and not self._is_users_definition(value):
            named = value if _defines_itself(value) else type(value)
            text = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
            if isinstance(value, types.ModuleType):
                text = value.__name__
        if text is not None:
            self._add(where, CodePart(digest_of(text)))
        if not is_plain and id(value) not in self._seen:
            # The reference keeps the id from being used again.
            self._seen[id(value)] = value
            self._later(self._object, value, where)

    def _object(self, value: object, where: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, type):
            self._class(value)
        else:
            of_users_class = self._is_users_definition(type(value))
            for name, part in parts_of(value, where, of_users_class=of_users_class):
                self._reach(name, part)

    def _function(self, function: types.FunctionType, where: str) -> None:
        code = function.__code__
        namespace = function.__globals__
        file = code.co_filename
        label = f"{self._prefix(namespace, file)}{code.co_qualname}"
        users = self._is_users(file)
        for variable, content in closure_of(function):
            # Other contents of a library's decorator belong to the library, whose version is stored.
            if variable != "__class__" and (
                users or where in self._roots or _defines_itself(content)
            ):
                self._reach(f"closure variable {variable!r} of {label}", content)
        if "__wrapped__" in function.__dict__:
            self._reach(where, function.__dict__["__wrapped__"])
        if not users:
            return
        source = self._source(file)
        outer, _, inner = code.co_qualname.partition(".")
        has_text = source.runs([code])
        if inner or not has_text:
            for name, default in named_defaults(function).items():
                self._reach(f"default {name!r} of {label}", default)
        if not has_text:
            self._without_text(function, label)
        elif outer in source.bindings:
            self._variable(outer, namespace, source)
        else:
            self._statements(label, source.lambdas(code.co_firstlineno), namespace, source)

    def _without_text(self, function: types.FunctionType, label: str) -> None:
        code = function.__code__
        self._add(label, CodePart(digest_of(_text_of_code(code)), NO_TEXT))
        for name, _ in globals_of(function):
            self._use(name, [()], function.__globals__, Source(code.co_filename, ""))
        for name in imported_modules(function):
            self._module(name)

    def _class(self, cls: type) -> None:
        for base in type.__dict__["__mro__"].__get__(cls)[1:]:
            if self._is_users_definition(base):
                self._reach(base.__qualname__, base)
        if not self._is_users_definition(cls):
            return
        for function in _methods_of(cls):
            for variable, content in closure_of(function):
                if variable != "__class__":
                    self._reach(
                        f"closure variable {variable!r} of {function.__qualname__}", content
                    )
        file = _file_of_class(cls)
        source = self._source(file)
        methods = _own_methods_of(cls)
        name = cls.__qualname__.partition(".")[0]
        namespace = (
            methods[0].__globals__ if methods else vars(sys.modules.get(cls.__module__, ast))
        )
        if name in source.bindings and source.runs(
            f.__code__ for f in methods if _file_of(f) == file
        ):
            self._variable(name, namespace, source)
            return
        label = f"{self._prefix(namespace, file)}{cls.__qualname__}"
        self._add(label, CodePart(digest_of(cls.__qualname__), NO_TEXT))
        for member, value in type.__dict__["__dict__"].__get__(cls).items():
            if member not in _NOT_COMPARED:
                self._reach(f"{label}.{member}", value)

    def _variable(self, name: str, namespace: Mapping[str, Any], source: Source) -> None:
        """Add a module's variable by the text of the statements that bind it."""
        value = namespace.get(name)
        if _is_of_this_package(value) or not self._is_new(source.file, name):
            return
        functions = _own_methods_of(value) if isinstance(value, type) else [value]
        own_functions = [
            f for f in functions if type(f) is types.FunctionType and _file_of(f) == source.file
        ]
        if not source.runs(f.__code__ for f in own_functions):
            self._reach(name, value)
            return
        label = f"{self._prefix(namespace, source.file)}{name}"
        by_value = self._is_compared_by_value(name, namespace, source)
        text = self._texts.of(value) if by_value else self._rebound(value, source.bindings[name])
        self._statements(label, source.bindings[name], namespace, source, text or "")
        if text is None:
            self._reach(label, value)

    def _rebound(self, value: object, statements: Sequence[ast.stmt]) -> str:
        """Return a text of the values that are not those of the statements at the top level.

        A script has assigned others since, in its main block, or to a module or a class that it imports.
        """
        if isinstance(value, type):
            values = type.__dict__["__dict__"].__get__(value)
            bodies = [s.body for s in statements if isinstance(s, ast.ClassDef)]
            literals = _literals(itertools.chain.from_iterable(bodies))
        else:
            literals = _literals(statements)
            values = dict.fromkeys(literals, value)
        differing = [
            f"{name}={values[name]!r}"
            for name, literal in literals.items()
            if isinstance(values.get(name), _LITERAL) and repr(values[name]) != repr(literal)
        ]
        return ", ".join(differing)

    def _is_compared_by_value(
        self, name: str, namespace: Mapping[str, Any], source: Source
    ) -> bool:
        if name not in namespace or _defines_itself(namespace[name]):
            return False
        if not source.is_file:
            # Another cell may bind the variable again.
            return True
        key = source.file, id(namespace)
        if key not in self._by_value:
            self._by_value[key] = names_compared_by_value(source, namespace)
        return name in self._by_value[key]

    def _statements(
        self,
        label: str,
        statements: Sequence[ast.stmt],
        namespace: Mapping[str, Any],
        source: Source,
        value: str = "",
    ) -> None:
        """Add statements as one part, and all that they use."""
        texts = [value]
        for statement in statements:
            used = _used_in(statement)
            for name in sorted(used):
                self._use(name, used[name], namespace, source)
                texts += [
                    f"{getattr(node, 'level', '')}{getattr(node, 'module', '')}:{meaning(alias)}"
                    for node, alias in source.imports.get(name, ())
                ]
            for child in ast.walk(statement) if self._is_new(statement) else ():
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    for module in _imported_in(child, _package_of(namespace)):
                        self._module(module)
                variable = _environment_variable(child, namespace)
                if variable is not None:
                    value = digest_of(repr(os.environ.get(variable)))
                    self._add(f"${variable}", CodePart(value, OF_ENVIRONMENT))
        if statements:
            self._add(label, _part_of(statements, source, *texts))

    def _use(
        self, name: str, chains: Iterable[Chain], namespace: Mapping[str, Any], source: Source
    ) -> None:
        """Add a variable that a statement uses; if it is a module, its attributes ``chains``."""
        if not self._is_new(id(namespace), name, *chains, source):
            return
        if name in source.bindings:
            self._later(self._variable, name, namespace, source)
        for node, alias in source.imports.get(name, ()):
            if isinstance(node, ast.ImportFrom):
                module = sys.modules.get(_absolute(node, _package_of(namespace)))
                self._attributes(module, [(alias.name, *chain) for chain in chains])
        value = namespace.get(name)
        if isinstance(value, types.ModuleType):
            self._attributes(value, chains)
        if name not in namespace or name in source.bindings or name in source.imports:
            return
        if not _is_of_this_package(value) and not name.startswith("__"):
            self._reach(f"{self._prefix(namespace, source.file)}{name}", value)

    def _attributes(self, module: types.ModuleType | None, chains: Iterable[Chain]) -> None:
        """Add attributes of a user's module; the whole module where it is used as a value."""
        file = getattr(module, "__file__", None)
        # A directory without an `__init__.py` is a module without a file.
        if module is None or (isinstance(file, str) and not self._is_users(file)):
            return
        contents = vars(module)
        for first, *others in filter(None, chains):
            inner = contents.get(first)
            if isinstance(file, str):
                self._use(first, [tuple(others)], contents, self._source(file))
            elif isinstance(inner, types.ModuleType):
                self._attributes(inner, [tuple(others)])
        if () in chains:
            self._module(module.__name__)

    def _module(self, name: str) -> None:
        """Add a complete module of the user's, and all that it imports."""
        file = file_of_module(name)
        if file is None or not self._is_users(file) or not self._is_new("module", name):
            return
        source = self._source(file)
        self._add(f"module {name}", _part_of(source.compared.body, source))
        package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imported_in(source.compared, package):
            self._later(self._module, imported)

    def _source(self, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = source_of(file)
        return self._sources[file]

    def _is_users(self, file: str) -> bool:
        # Code that was passed by value is the user's even if its file or cell does not exist.
        return is_users_source(file) or file == self._own_file

    def _is_users_definition(self, value: object) -> bool:
        """Return whether a function, a wrapper of one, or a class is the user's."""
        if isinstance(value, type):
            file = _file_of_class(value)
            return bool(file) and self._is_users(file)
        return any(self._is_users(_file_of(function)) for function in _functions_at(value))

    def _prefix(self, namespace: Mapping[str, Any], file: str) -> str:
        """Return the prefix of a part's name; empty in the model factory's file and in notebooks."""
        module = str(namespace.get("__name__") or "__main__")
        if file == self._own_file or not Path(file).is_file():
            return ""
        return f"{module}." if "." in module else f"{Path(file).stem}."

    def _add(self, name: str, part: CodePart) -> None:
        """Add a part; if the name is taken, with a number after it."""
        number = 1
        free = name
        while free in self._parts:
            if self._parts[free] == part:
                return
            number += 1
            free = f"{name}#{number}"
        self._parts[free] = part


def _functions_at(value: object) -> Iterator[types.FunctionType]:
    """Yield the function that runs when ``value`` is called, if it is not a library's in C."""
    for _ in range(_DEEPEST):
        if isinstance(value, types.FunctionType):
            yield value
            return
        called = inspect.getattr_static(type(value), "__call__", None)
        parts = parts_of(value, "", of_users_class=False)
        value = next((part for _, part in parts), called)


def _literals(statements: Iterable[ast.stmt]) -> dict[str, Any]:
    """Return the numbers, texts and flags that the statements assign, by variable."""
    literals: dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            with contextlib.suppress(ValueError):
                value = ast.literal_eval(statement.value)
                if isinstance(value, _LITERAL):
                    literals |= {t.id: value for t in targets if isinstance(t, ast.Name)}
    return literals


def _environment_variable(node: ast.AST, namespace: Mapping[str, Any]) -> str | None:
    """Return the name of the environment variable that ``node`` reads, if the text gives it."""
    name: ast.expr | None = None
    mapping: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        mapping, name = node.value, node.slice
    elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
        mapping, name = node.comparators[0], node.left
    elif isinstance(node, ast.Call) and node.args:
        name = node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            mapping = node.func.value
    reads = mapping is not None and static_value(mapping, namespace) is os.environ
    reads |= isinstance(node, ast.Call) and static_value(node.func, namespace) is os.getenv
    if not reads:
        return None
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value
    return None


@functools.lru_cache(maxsize=4096)
def _used_in(statement: ast.stmt) -> dict[str, frozenset[Chain]]:
    """Return the module's variables that a statement reads, with the attributes that it reads of them."""
    tree = ast.Module([statement], [])
    code = compile(tree, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    # The compiler knows which names are local to a function.
    names = {name for inner_code in all_codes(code) for name in inner_code.co_names}
    chains_by_name: dict[str, set[Chain]] = {}
    inner: set[ast.AST] = set()
    for node in ast.walk(statement):
        base = node
        chain = list[str]()
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
            inner.add(base)
        if isinstance(base, ast.Name) and base.id in names and node not in inner:
            chains_by_name.setdefault(base.id, set()).add(tuple(chain))
    return {name: frozenset(chains) for name, chains in chains_by_name.items()}


@functools.lru_cache(maxsize=4096)
def _meaning_of(statement: ast.stmt) -> str:
    # Cached, because a statement may bind many names.
    return meaning([statement])


def _part_of(statements: Iterable[ast.stmt], source: Source, *texts: str) -> CodePart:
    return CodePart(digest_of(*map(_meaning_of, statements), *texts), source.shown)


def _imported_in(node: ast.AST, package: str) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and (base := _absolute(child, package)):
            yield base
            yield from (f"{base}.{alias.name}" for alias in child.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])


def file_of_module(name: str) -> str | None:
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return file if isinstance(file, str) else None
    return find_module_file(name, sys.path)


def _defines_itself(value: object) -> bool:
    """Return whether ``value`` is a function or class, whose own code defines it."""
    return isinstance(value, types.FunctionType | type) or "__wrapped__" in (own_dict(value) or {})


def _is_of_this_package(value: object) -> bool:
    """Return whether ``value`` is the study or its result; a study's settings are compared separately."""
    return type(value).__module__.partition(".")[0] == "sweeper"


def _package_of(namespace: Mapping[str, Any]) -> str:
    return str(namespace.get("__package__") or "")


def _methods_of(cls: type) -> list[types.FunctionType]:
    members = type.__dict__["__dict__"].__get__(cls).values()
    return [function for member in members for function in functions_of(member)]


def _own_methods_of(cls: type) -> list[types.FunctionType]:
    return [f for f in _methods_of(cls) if f.__qualname__.startswith(f"{cls.__qualname__}.")]


def _file_of(function: types.FunctionType) -> str:
    return function.__code__.co_filename


def _file_of_class(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    file = str(getattr(module, "__file__", None) or "")
    if file and cls.__module__ != "__main__":
        return file
    files = map(_file_of, _own_methods_of(cls))
    return next((path for path in files if not path.startswith("<string")), file)


def _text_of_constant(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _text_of_code(value)
    if isinstance(value, frozenset):
        # Its order differs between processes.
        return repr(sorted(map(repr, value)))
    return repr(value)


def _text_of_code(code: types.CodeType) -> str:
    """Return a text for code without a known source: its instructions, names and constants."""
    constants = [_text_of_constant(value) for value in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return f"{code.co_code.hex()}{names}{counts}{constants}"
