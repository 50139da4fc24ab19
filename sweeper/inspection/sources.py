"""Text of the user's code: owner, meaning, and the statements that bind a module's variables.

Two texts have the same meaning if their syntax trees are equal except for docstrings and positions. A
text is used only if it compiles to the code that runs: a file may have been edited after its import.
"""

from __future__ import annotations
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

from sweeper.records.code import CodeFingerprint, digest_of

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
    found, entries = None, [*path]
    parts = name.split(".")
    for count, part in enumerate(parts, 1):
        if not part.isidentifier():
            return None
        found = PathFinder.find_spec(".".join(parts[:count]), entries)
        if found is None:
            return None
        entries = [*(found.submodule_search_locations or ())]
    return found.origin if found is not None and found.has_location else None


_SHORT = 8
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
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
        text: The text.
        tree: The parsed text.
    """

    file: str
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def is_file(self) -> bool:
        return Path(self.file).is_file()

    @property
    def shown(self) -> str:
        """Return the name of the source for the user."""
        return Path(self.file).name if self.is_file else "a notebook's cell"

    def runs(self, code: types.CodeType) -> bool:
        """Return whether this text compiles to ``code``."""
        # A notebook's cell is compiled with the __future__ imports of earlier cells.
        return code in _codes(self.text, code.co_flags & _FUTURE)

    @functools.cached_property
    def compared(self) -> ast.Module:
        """Return the tree without docstrings and without the settings of studies."""
        tree: ast.Module = _Compared().visit(ast.parse(self.text))
        return tree

    @functools.cached_property
    def bindings(self) -> Mapping[str, list[ast.stmt]]:
        """Return the statements at the top level that bind or change a variable, by its name."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.compared.body:
            for name in dict.fromkeys(map(bound_name, outside_functions(statement))):
                if name is not None:
                    found.setdefault(name, []).append(statement)
        return found

    def lambdas(self, line: int) -> list[ast.stmt]:
        """Return the lambdas that begin at ``line``, each as a statement."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.Lambda) and n.lineno == line]
        return [ast.copy_location(ast.Expr(each), each) for each in found]


class _Compared(ast.NodeTransformer):
    """Removal of docstrings and, unless ``settings``, of a study's settings, which are compared by value."""

    def __init__(self, *, settings: bool = False) -> None:
        self._settings = settings

    def visit(self, node: Any) -> Any:
        """Return ``node`` without those parts."""
        if isinstance(node, ast.Module | _DEFINITIONS) and ast.get_docstring(node, clean=False):
            # A body with only a docstring is equivalent to `pass`.
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), node.body[0])]
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in ("Study", "sweeper.Study") and not self._settings:
            node.args, node.keywords = [], []
        return self.generic_visit(node)


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
        each = waiting.pop()
        yield each
        if not isinstance(each, _DEFINITIONS | ast.Lambda):
            waiting += reversed(list(ast.iter_child_nodes(each)))


def is_users_source(file: str) -> bool:
    """Return whether ``file`` is a file of the user's or a notebook's cell."""
    if not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    if is_users(file):
        return True
    # Notebooks register the texts of their cells for tracebacks.
    entry = linecache.cache.get(file)
    return entry is not None and len(entry) > 1 and entry[1] is None


def source_of(file: str) -> Source | None:
    """Return the current text of ``file``; None if there is none, or it is not Python."""
    if is_users(file):
        linecache.checkcache(file)
    return _parsed(file, "".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def _parsed(file: str, text: str) -> Source | None:
    if not text:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    return Source(file, text, tree)


@functools.lru_cache(maxsize=256)
def _codes(text: str, flags: int) -> frozenset[types.CodeType]:
    """Return all code objects that ``text`` compiles to."""
    flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return frozenset(all_codes(compile(text, "", "exec", flags=flags, dont_inherit=True)))
    except SyntaxError:
        return frozenset()


def all_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield ``code`` and all code objects inside it."""
    waiting = [code]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += [part for part in each.co_consts if type(part) is types.CodeType]


def changed_definitions(file: Path, code: CodeFingerprint) -> tuple[str, ...]:
    """Return the functions and classes of a file that differ from ``code``, with their lines."""
    source = _parsed(str(file), file.read_text(encoding="utf-8", errors="replace"))
    if source is None:
        return (f"{file.name} is not readable as Python",)
    changed = []
    for name, part in code.parts.items():
        nodes = source.bindings.get(name, [])
        if part.file != file.name or not part.statements:
            continue
        texts = [text for _, text in lines_of(nodes)]
        defined = any(isinstance(node, _DEFINITIONS) for node in nodes)
        if defined and texts != [text for _, text in part.statements]:
            changed.append(f"{name} has changed (line {nodes[0].lineno})")
    return tuple(changed)


def meaning_of_text(text: str | bytes) -> str:
    """Return the meaning of a file's text.

    Raises:
        SyntaxError, ValueError, RecursionError: It is not Python.
    """
    return meaning(_Compared(settings=True).visit(ast.parse(text)))


def meaning(node: object, *, blocks: bool = True) -> str:
    """Return a text that is equal for syntax trees that differ only in positions.

    Args:
        node: A tree, or a field of one.
        blocks: Whether to include the statements inside a compound statement.
    """
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={meaning(value)}"
            for name, value in ast.iter_fields(node)
            # Fields that are empty differ between versions of Python.
            if name not in ("ctx", "type_comment", "kind") and value is not None and value != []
            if blocks or name not in _BLOCKS or not isinstance(value, list)
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list | tuple):
        return f"[{','.join(map(meaning, node))}]"
    return f"{type(node).__name__}:{node!r}"


def lines_of(statements: Iterable[ast.stmt]) -> tuple[tuple[int, str], ...]:
    """Return line and digest of the statements and each statement in them, without its blocks."""
    return tuple(
        (int(each.lineno), digest_of(meaning(each, blocks=False))[:_SHORT])
        for statement in statements
        for each in _in_order(statement)
        if isinstance(each, ast.stmt | ast.Lambda | ast.excepthandler)
    )


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def meaning_of_code(code: types.CodeType) -> str:
    """Return a text for code without a known source: its instructions, names and constants."""
    constants = [
        meaning_of_code(value) if isinstance(value, types.CodeType) else meaning(_ordered(value))
        for value in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return f"{code.co_name}{code.co_code.hex()}{names}{code.co_flags}[{','.join(constants)}]"


def _ordered(value: object) -> object:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
