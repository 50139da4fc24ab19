"""Text of the user's code: owner, meaning, and the statements that bind a module's variables.

Two texts have the same meaning if their syntax trees are equal except for docstrings and positions. A
text is used only if it compiles to the code that runs: a file may have been edited after its import.
"""

import __future__

import ast
import functools
import linecache
import operator
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sweeper.records.code import digest_of

_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
)
_PACKAGE = str(Path(__file__).resolve().parents[1])


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Return whether ``file`` is the user's: not of Python, of an installed library or of this package."""
    if not file or file.startswith("<"):
        return False
    resolved = str(Path(file).resolve())
    return not resolved.startswith((*_LIBRARIES, _PACKAGE)) and Path(resolved).is_file()


def outward(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yield ``frame`` and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_line(lines: Iterable[tuple[str, int]]) -> str | None:
    """Return the user's first of ``lines``, files and line numbers, as ``file:line``."""
    return next((f"{Path(f).name}:{number}" for f, number in lines if is_users(f)), None)


def find_module_file(name: str, path: Iterable[str]) -> str | None:
    """Return the file of the module ``name`` found by the entries of ``path``, without importing it."""
    spec = None
    entries = [*path]
    for part in name.split("."):
        if not part.isidentifier():
            return None
        # By its last name alone: a package without `__init__` would look for its imported parent.
        spec = PathFinder.find_spec(part, entries)
        if spec is None:
            return None
        entries = [*(spec.submodule_search_locations or ())]
    return spec.origin if spec is not None and spec.has_location else None


_WITHOUT_MEANING = ("ctx", "type_comment", "kind")
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, eq=False)
class Source:
    """A text that Python compiled: of a file, or of a notebook's cell.

    Attributes:
        file: File name in code objects.
        text: The text; empty if there is none, or it is not Python.
    """

    file: str
    text: str = field(repr=False)

    @property
    def is_file(self) -> bool:
        return Path(self.file).is_file()

    @property
    def shown(self) -> str:
        return Path(self.file).name if self.is_file else "a notebook's cell"

    def runs(self, codes: Iterable[types.CodeType]) -> bool:
        # A notebook's cell is compiled with the __future__ imports of earlier cells.
        return bool(self.text) and all(c in _codes(self.text, c.co_flags & _FUTURE) for c in codes)

    @functools.cached_property
    def compared(self) -> ast.Module:
        """Return the tree without the settings of studies, which are compared by value."""
        tree: ast.Module = _WithoutSettings().visit(ast.parse(self.text))
        return tree

    @functools.cached_property
    def bindings(self) -> Mapping[str, list[ast.stmt]]:
        """Return the statements at the top level that bind or change a variable, by its name.

        Those that only import it are in `imports`.
        """
        bindings: dict[str, list[ast.stmt]] = {}
        others = [s for s in self.compared.body if not isinstance(s, ast.Import | ast.ImportFrom)]
        for statement in others:
            for name in dict.fromkeys(map(bound_name, outside_functions(statement))):
                if name is not None:
                    bindings.setdefault(name, []).append(statement)
        return bindings

    @functools.cached_property
    def imports(self) -> Mapping[str, list[tuple[ast.Import | ast.ImportFrom, ast.alias]]]:
        """Return the imports at the top level, by the names that they bind."""
        imports: dict[str, list[tuple[ast.Import | ast.ImportFrom, ast.alias]]] = {}
        for node in outside_functions(self.compared):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    imports.setdefault(str(bound_name(alias)), []).append((node, alias))
        return imports

    def lambdas(self, line: int) -> list[ast.stmt]:
        """Return the lambdas that start at ``line``, each as a statement."""
        nodes = ast.walk(ast.parse(self.text))
        lambdas = [node for node in nodes if isinstance(node, ast.Lambda) and node.lineno == line]
        return [ast.copy_location(ast.Expr(expression), expression) for expression in lambdas]


_SUGGESTS = ("suggest_float", "suggest_int", "suggest_categorical")
_PURE = frozenset(
    [
        "abs",
        "float",
        "int",
        "len",
        "list",
        "map",
        "max",
        "min",
        "pow",
        "range",
        "round",
        "sorted",
        "str",
        "sum",
        "tuple",
    ]
)
"""Functions of Python's whose calls in a range do nothing but compute it."""


class _WithoutSettings(ast.NodeTransformer):
    """Removal of the arguments of `Study`, and of the ranges and choices that a factory suggests."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return ``node`` without its arguments if it makes a study; with its name if it suggests a value."""
        if ast.unparse(node.func) in ("Study", "sweeper.Study"):
            node.args = []
            node.keywords = []
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _SUGGESTS:
            # A trial's result depends on the suggested value, and not on the range that it is from.
            space = [*node.args[1:], *(k for k in node.keywords if k.arg not in ("name", None))]
            if not any(_may_have_effects(child) for part in space for child in ast.walk(part)):
                node.args = node.args[:1]
                node.keywords = [k for k in node.keywords if k.arg in ("name", None)]
        return self.generic_visit(node)


def _may_have_effects(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Name) and node.func.id in _PURE)
    return isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)


def bound_name(node: ast.AST) -> str | None:
    """Return the variable that ``node`` itself binds, deletes or changes."""
    if isinstance(node, _DEFINITIONS):
        return node.name
    if isinstance(node, ast.alias):
        return node.asname or node.name.partition(".")[0]
    base: ast.AST | None = None
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        base = base_of(node) if isinstance(node.ctx, ast.Store | ast.Del) else None
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # Such as `SIZES.append(3)`.
        base = base_of(node.value.func)
        base = None if base is node.value.func else base
    return base.id if isinstance(base, ast.Name) else None


def base_of(node: ast.AST) -> ast.AST:
    """Return the expression before all attributes and items: ``a`` of ``a.b[0].c``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and all nodes in it that run with it: not the bodies of functions and classes."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if not isinstance(current, _DEFINITIONS | ast.Lambda):
            waiting += reversed(list(ast.iter_child_nodes(current)))


def texts_of_cells() -> dict[str, str]:
    """Return the texts that are in no file, such as a notebook's cells, by file name in code objects.

    Notebooks register them for tracebacks. Another process, which gets the code by value, has none.
    """
    cells = (file for file, entry in linecache.cache.items() if _is_cell(entry))
    return {file: "".join(linecache.getlines(file)) for file in [*cells]}


def is_users_source(file: str) -> bool:
    """Return whether ``file`` is a file of the user's or a notebook's cell."""
    if not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    if is_users(file):
        return True
    return _is_cell(linecache.cache.get(file, ()))


def _is_cell(entry: tuple[Any, ...]) -> bool:
    """Return whether an entry of `linecache` has a text without a file: no time of a last change."""
    return len(entry) > 1 and entry[1] is None


def source_of(file: str) -> Source:
    if is_users(file):
        # The file may have been edited since it was cached.
        linecache.checkcache(file)
    return _parsed(file, "".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def _parsed(file: str, text: str) -> Source:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        text = ""
    return Source(file, text)


@functools.lru_cache(maxsize=256)
def _codes(text: str, flags: int) -> frozenset[types.CodeType]:
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return frozenset(all_codes(compile(text, "", "exec", flags=flags, dont_inherit=True)))
    except SyntaxError:
        return frozenset()


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    waiting = [code]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += [part for part in current.co_consts if type(part) is types.CodeType]


def meaning_of_text(text: str | bytes) -> str:
    """Return the digest of a file's text without comments, docstrings and formatting.

    Raises:
        SyntaxError, ValueError, RecursionError: It is not Python.
    """
    return digest_of(meaning(ast.parse(text)))


def meaning(node: object) -> str:
    """Return a text that is equal for trees that differ only in positions, docstrings and ``pass``."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in _WITHOUT_MEANING or value is None:
                continue
            text = meaning(value)
            # Fields that are empty differ between versions of Python.
            if text != "[]":
                fields.append(f"{name}={text}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(meaning(item) for item in node if not _has_no_effect(item))}]"
    return repr(node)


def _has_no_effect(statement: object) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)
