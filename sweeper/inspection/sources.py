"""Text of the user's code: owner, meaning, and positions of functions and classes.

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


_SHORT = 8
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
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

    def function(self, code: types.CodeType) -> ast.AST | None:
        """Return the definition or lambda that ``code`` was compiled from, or None."""
        if not self.runs(code):
            return None
        found = self._functions.get((code.co_firstlineno, code.co_name), [])
        if len(found) > 1:
            found = [node for node in found if _surrounds(node, code)] or found
            found = sorted(found, key=_extent)
        return found[0] if found else None

    def class_(self, qualname: str, methods: list[types.CodeType]) -> ast.ClassDef | None:
        """Return the last class of that name that has the ``methods``, or None."""
        if not all(self.runs(code) for code in methods):
            return None
        lines = {code.co_firstlineno for code in methods}
        found = None
        for node in self._classes.get(qualname, ()):
            if lines <= {_first_line(each) for each in ast.walk(node)}:
                found = node
        return found

    @functools.cached_property
    def _functions(self) -> Mapping[tuple[int, str], list[ast.AST]]:
        """Return the definitions and lambdas by first line and name."""
        found: dict[tuple[int, str], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                name = getattr(node, "name", "<lambda>")
                found.setdefault((_first_line(node), name), []).append(node)
        return found

    @functools.cached_property
    def _classes(self) -> Mapping[str, list[ast.ClassDef]]:
        """Return the classes by qualified name."""
        found: dict[str, list[ast.ClassDef]] = {}
        for name, node in _qualified(self.tree, ""):
            if isinstance(node, ast.ClassDef):
                found.setdefault(name, []).append(node)
        return found


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
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return (f"{file.name} is not readable as Python",)
    found = dict(_qualified(tree, ""))
    changed = []
    for name, part in code.parts.items():
        node = found.get(name)
        if part.file != file.name or not part.statements:
            continue
        defined = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if defined and digest_of(meaning(node)) != part.digest:
            changed.append(f"{name} has changed (line {getattr(node, 'lineno', 0)})")
    return tuple(changed)


def meaning(node: object) -> str:
    """Return a text that is equal for syntax trees that differ only in docstrings and positions."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in ("ctx", "type_comment", "kind") or value is None or value == []:
                continue
            inner = value
            if name == "body" and isinstance(value, list):
                inner = _without_docstring(node, value)
            fields.append(f"{name}={meaning(inner)}")
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list | tuple):
        return f"[{','.join(map(meaning, node))}]"
    return f"{type(node).__name__}:{node!r}"


def statements_of(node: ast.AST) -> tuple[tuple[int, str], ...]:
    """Return line and digest of ``node`` and each statement in it, without the blocks of a statement."""
    found = []
    for each in _in_order(node):
        if isinstance(each, ast.stmt | ast.Lambda | ast.excepthandler | ast.match_case):
            has_blocks = isinstance(getattr(each, "body", None), list)
            head = meaning(_Headed(each)) if has_blocks else meaning(each)
            found.append((getattr(each, "lineno", 0), digest_of(head)[:_SHORT]))
    return tuple(found)


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


class _Headed(ast.AST):
    """A compound statement without its blocks."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        kept = [(n, v) for n, v in ast.iter_fields(node) if n not in _BODIES]
        self._fields = tuple(name for name, _ in kept)  # type: ignore[misc]
        for name, value in kept:
            setattr(self, name, value)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        parts = value if isinstance(value, list) else [value]
        if name == "body":
            parts = _without_docstring(node, parts)
        for part in parts:
            if isinstance(part, ast.AST):
                yield from _in_order(part)


def _without_docstring(node: ast.AST, body: list[Any]) -> list[Any]:
    if (
        isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        # A body with only a docstring is equivalent to `pass`.
        return body[1:] or [ast.Pass(lineno=body[0].lineno)]
    return body


def _first_line(node: Any) -> int:
    lines = [int(each.lineno) for each in getattr(node, "decorator_list", ())]
    return min([int(getattr(node, "lineno", 0)), *lines])


def _surrounds(node: ast.AST, code: types.CodeType) -> bool:
    """Return whether the positions of all instructions of ``code`` are within ``node``."""
    begin = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    for line, end_line, column, end_column in code.co_positions():
        # Instructions that create a frame or a cell have no column.
        if line is None or not end_column or column is None or end_line is None:
            continue
        if (line, column) < begin or (end_line, end_column) > end:
            return False
    return True


def _extent(node: ast.AST) -> tuple[int, int]:
    lines = getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0)
    return lines, getattr(node, "end_col_offset", 0) - getattr(node, "col_offset", 0)


def _qualified(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            name = f"{prefix}{getattr(child, 'name', '<lambda>')}"
            yield name, child
            inner = "." if isinstance(child, ast.ClassDef) else ".<locals>."
            yield from _qualified(child, name + inner)
        else:
            yield from _qualified(child, prefix)
